// Package relay carries a request to a worker and what it answers back, frame by frame.
//
// Call reads one request, decodes it once to route it, sends its bytes as they came, and copies response frames without
// decoding them; unary and streaming methods are the same to it. Headers leave with the first frame, the caller's
// cancellation and deadline reach the worker, and the worker's trailers and status reach the caller unchanged. What the
// relay says itself is that a worker was lost, or that none can be picked.
//
// One goroutine serves one call: a reader that is slow stops it, and through flow control the worker's stream.
package relay
