// Package rpc is the gRPC set-up that scheduler, worker and client share: one way to build a server, one way to dial,
// one way to make and read a status.
//
// A server is built with NewServer, services are registered on it with their generated Register functions, and Serve
// runs it until its context ends. Every method goes through one chain (request id, one log line, recovery, request
// checks, then the interceptors of the program), health and both reflections and channelz answer on it, and every failure
// that arises below the handlers carries the same details as one from a handler. Dial makes client connections with
// matching limits. Fault builds a status with details, whose reasons package reason has; Reason, Info and RetryAfter read
// one. The bytes of the requests that a server's handlers hold are bounded; a handler that needs its request no more says
// so with LetGo.
//
// The package knows no service of ours, no model and no worker, and reads no environment. It exits the process in one case
// alone: when grpc-go's own logger is told of a fatal error, from which it must not return.
package rpc
