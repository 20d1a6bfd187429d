// Package rpctest helps tests of gRPC services: a server and a client connection over memory, a
// check that no goroutine outlives a test, and a logger that writes to the test.
//
// Only tests import it. It knows no service.
package rpctest
