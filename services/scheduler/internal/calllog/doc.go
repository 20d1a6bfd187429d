// Package calllog is the log of one Generate call: what its client has received, and what a further worker must be asked so that
// the client receives the rest and nothing twice.
//
// A Log is made from a request. Next gives the bytes to send to a worker; Take is told every frame that comes back, in order, and
// says whether it goes to the client as it came, changed or not at all. The caller sends at once what Take gave free: the log
// counts it as delivered. When a worker is lost, its late frames are not shown to Take; Next begins anew from the log.
//
// Frames are scanned and not decoded: per token a log keeps its id, and of the text its bytes' number. A frame that no worker
// that keeps the contract could have sent is an ErrViolation: the log cannot vouch for a stream that it does not understand.
//
// The package is pure: it has no clock, socket or goroutine, and knows no workers. One goroutine uses a Log.
package calllog
