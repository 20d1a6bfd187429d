// Package console serves a page for operators: the fleet as the scheduler sees it, drains, loads
// and unloads, and a playground.
//
// Serve listens on a port of its own. It serves five files, and under /api/ the methods that the
// page calls: a POST of a JSON request, whose response has one JSON line for each message. A call
// goes to the scheduler's own server over an in-process connection, so it is treated like all
// others: it has an id and a log line, its checks, and the rights and quotas of the token that the
// browser sends.
//
// guard.go refuses requests that a browser must not make: for a page of another origin, with a host
// name that was rebound to this machine, or with an oversized request.
//
// The package knows the contract and no part of the scheduler.
package console
