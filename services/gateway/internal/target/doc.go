// Package target calls the servers of --target: one or several schedulers or workers, which serve
// the same contract.
//
// Open makes the connection, Client makes the calls. Calls go round robin to the servers that
// are connected. A call that is refused with UNAVAILABLE before its first response is repeated at
// another server. Generate returns when the first event has arrived, so that a caller knows whether
// a request was accepted before it sends anything itself.
//
// Context carries what every call of a request has in common: the request id, the token of the
// caller, the routing key and the span.
//
// The package knows the contract and no HTTP.
package target
