// Package relay forwards a call to a worker and streams the answer to the caller. If the worker is
// lost, it continues the call on another worker, so the caller of Generate sees one stream:
//
//	caller          relay                         worker A           worker B
//	  |-- request --->| Place: queue, then a lease    |                  |
//	  |               |-- attempt 1: request -------->|                  |
//	  |<-- started ---|<-- started -------------------|                  |
//	  |<-- token 0 ---|<-- token 0 -------------------|                  |
//	  |<-- token 1 ---|<-- token 1 -------------------|                  |
//	  |               |               connection lost X                  |
//	  |               | Place: same digest and class, not A              |
//	  |               |-- attempt 2: request + resume [0 1] ------------>|
//	  |     (dropped) |<-- started --------------------------------------|
//	  |<-- token 2 ---|<-- token 2 --------------------------------------|
//	  |<-- finished --|<-- finished (rewritten: it covers both attempts)-|
//
// A call decodes its request once, to route it. It then runs attempts in sequence, each on a lease
// from a Placer, until one of them ends the call. Response frames are copied and not decoded,
// because decoding a token frame costs as much again as package calllog's scan of it, and five
// allocations (docs/decisions/024).
//
// What follows the end of an attempt depends on how far the call was, and on its retryScope:
//
//   - The status is about the request (bad argument, expired deadline): it ends the call.
//   - Before `started`, the call is placed again as a whole (retryFromStart). A retry budget limits
//     these retries, so that a failing fleet is not flooded with them.
//   - After `started`, the stream is resumed: the next worker receives the token ids that the
//     caller has and computes the rest. The search for it lasts until the call's deadline, or for
//     FailoverWait without one.
//   - If the worker drains, the stream is handed over: the slot on the peer is leased first, and
//     only then is the running attempt cancelled, so the stream does not wait between the two.
//   - A unary method, and any other method than Generate, is retried until its first frame. After
//     that frame its failure ends the call, because a second worker might repeat frames that the
//     caller has.
//
// Two invariants make a resume exact. A frame is sent to the caller before the next one is
// received: so the log of delivered tokens is exactly the list of sent tokens. And frames of an
// attempt that was given up are never read: a worker that was only slow cannot add a second copy.
//
// One goroutine serves one call. If the caller is a slow consumer, that goroutine blocks in
// SendMsg, stops receiving, and HTTP/2 flow control applies backpressure to the worker. A second
// goroutine exists only while a draining worker's stream looks for a peer.
//
// Statuses of a worker reach the caller unchanged, with the worker's domain. The relay adds its own
// only if a worker was lost, if the call's time is over, or if no worker can be placed.
package relay
