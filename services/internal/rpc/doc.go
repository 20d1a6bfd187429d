// Package rpc is the gRPC set-up that scheduler, worker and client share: one way to build a server, one way to dial,
// one way to make and read a status.
//
// A server is built with NewServer, services are registered on it with their generated Register functions, and Serve
// runs it until its context ends. Every method goes through one chain (request id, one log line, recovery, request
// checks), health and both reflections and channelz answer on it, and every failure that arises below the handlers
// carries the same details as one from a handler. Dial makes client connections with matching limits. Fault builds a
// status with details; Reason, Info and RetryAfter read one.
//
// The package knows no service of ours, no model and no worker. It never exits the process and reads no environment.
package rpc
