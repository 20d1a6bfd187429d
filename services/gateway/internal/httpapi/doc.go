// Package httpapi is the part of the gateway that all its HTTP APIs share.
//
// A Dialect is one API, for example OpenAI's: its routes and the shape of its errors. Its handlers
// get an Exchange, one request with its answer:
//
//	request -> limits, TLS, origin, request id, span, deadline        (Server)
//	        -> Exchange.Decode: the body, bounded and strict          (handler of a Dialect)
//	        -> package target: the call, until its first event
//	        -> Exchange.WriteJSON, or Exchange.Stream and its writes
//	        -> an error that a handler returns, in the dialect's shape: a response if nothing was
//	           written yet, else the last event of the stream
//	        -> metrics, span and one log line                         (Server)
//
// A handler returns errors and never writes them. FailureOf converts every error into a Failure,
// which has the HTTP status, the reason and the JSON path.
//
// Server bounds what clients may send and how slowly they may read, and drains at the end. The
// package does not depend on a dialect.
package httpapi
