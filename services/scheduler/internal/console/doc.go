// Package console is a page for operators: the fleet as the scheduler sees it, drains, loads and unloads, and a playground.
//
// Serve answers on a port of its own with five files, and under /api/ with the methods that the page calls: a POST of a request in
// JSON, whose answer is a line of JSON for each message. A call goes to the scheduler's own server over a connection from within, so
// that it is one like all others there: with its id and its line in the log, its checks, and the rights and quotas of the token that
// the browser shows.
//
// Who asks is refused by the rules of guard.go where a browser must not have asked: for a page of another origin, by a name that was
// made to point here, or with more than a request has.
//
// The package knows the contract and no part of the scheduler.
package console
