// Package relay carries a request to a worker and what it answers back, frame by frame, and to another worker when that one is
// lost.
//
// A call reads one request, decodes it once to route it, and runs attempts, each on the worker that a Placer gives it, until one
// ends the call. Response frames are copied without decoding them. The stream of a Generate call outlives its workers: package
// calllog says what each frame means and what the next worker is asked. Other methods, unary and streaming alike, are given to
// another worker until their first frame, and not after. Headers leave with the first frame; the caller's cancellation and deadline
// reach the worker; the trailers and the status of the attempt that ends the call reach the caller unchanged.
//
// Which of a worker's words ends the call, and which only the attempt, is a table: blame.go. What the relay says itself is that a
// worker was lost and why nobody took its place, that the call's time is over, or that none can be picked.
//
// One goroutine serves one call: a reader that is slow stops it, and through flow control the worker's stream. A second one lives
// for as long as it takes to find a peer, when a worker drains.
package relay
