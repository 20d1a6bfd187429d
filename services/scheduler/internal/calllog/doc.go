// Package calllog is the log of one Generate call. It records the events that the caller was sent,
// and derives from them the request that makes another worker send the rest, and nothing twice.
//
//	New(request)
//	  NextRequest -> worker A     Record(started)   -> forward
//	                              Record(token 0)   -> forward
//	                              Record(token 1)   -> forward
//	  (worker A is lost)          AttemptLost
//	  NextRequest -> worker B     Record(started)   -> drop, the caller has it
//	  = request + seed, digests,  Record(token 2)   -> forward
//	    class, resume [0 1]       Record(finished)  -> replace: usage and timings of both attempts
//
// The caller of Record must send a frame, as its Verdict says, before it records the next one: the
// log counts a recorded frame as delivered. After a worker is lost, late frames of that worker must
// not be recorded.
//
// Frames are scanned and not decoded, because a relayed token costs as much again to decode as to
// scan, and five allocations. Per token the log keeps the id, four bytes; of the text it keeps only
// the number of bytes. A frame that a worker cannot send at its place in the stream is an
// ErrViolation: the log cannot resume a stream that it does not understand, and does not guess.
//
// The next request is never encoded from scratch. Protobuf merges a message field that occurs
// twice, and takes the last of two numbers or strings, so the log appends fields to the original
// bytes.
//
// The package is pure: it has no clock, socket or goroutine, and no knowledge of workers. A Log is
// not safe for concurrent use.
package calllog
