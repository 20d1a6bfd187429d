// Package rpc is the gRPC setup that scheduler, worker and client share: one way to build a server,
// one way to dial, one way to make and read a status.
//
// NewServer builds a server. Services are registered with their generated Register functions, and
// Serve runs it until its context ends. Every server has health, reflection and channelz. Dial
// makes client connections with matching limits. Error builds a status with details; Reason, Info
// and RetryAfter read one.
//
// A call passes through these stages, in order. Each bounds what callers can make the server hold,
// and each refusal is a status with a reason.
//
//	connection    limits per address, TLS, first HTTP/2 frame within 10 s (package ingress)
//	    |
//	headers       at most 16 KiB, complete within 20 s
//	    |
//	beginCall     request id; releases all that the call holds at its end
//	logging       one line when the call ends
//	recovery      a panic ends its own call only
//	normalise     no compression; every error becomes a status
//	interceptors  the program's: keys and rights, quotas, spans
//	    |
//	receive       a message above 32 KiB waits for the receive budget before it arrives
//	decode        a message above 1 MiB waits for one of two decode slots
//	check         request budget (MaxWaitingBytes), unknown fields, UTF-8, number of elements
//	    |
//	handler       ReleaseRequest when it no longer needs its request
//	    |
//	send          small messages: one page a stream; larger ones: the send budget
//	write         SendMsg returns when a large message is on the wire, or ends the call if the
//	              caller reads nothing for the stall time
//
// A unary method runs as a stream too, because grpc-go would otherwise answer some malformed
// requests before any interceptor runs. grpc-go begins a call when its headers are complete, so
// that interceptors can refuse it before any message is read. Messages are received, decoded and
// checked when the handler, generated or not, calls RecvMsg.
//
// The bytes of a large request are counted three times in turn: in the receive budget while they
// arrive, in a decode slot while they exist twice, and in the request budget until the handler
// returns or calls ReleaseRequest. Responses are counted in the send budget until they are written.
// The counts are exported as metrics by package monitor.
//
// The package knows no service, model or worker, and reads no environment. It exits the process in
// one case only: when grpc-go's own logger reports a fatal error, from which it must not return.
package rpc
