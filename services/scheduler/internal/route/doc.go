// Package route decides which worker serves a request.
//
//	Snapshot, Request
//	  filter    digest, class, context, excluded workers      -> ErrDigestMismatch, ErrNoWorker ...
//	  fit       free slots? memory? only oversubscribed ones? -> ErrWorkersFull, ErrTooLarge
//	  score     of the best fit: cost in prompt tokens, prefix hits counted
//	  choose    by routing key, or the better of two drawn from the cheapest
//	  Choice    Reserve counts the request before it leaves
//
// Pick is a pure function of a Snapshot and a Request. Filters remove workers; of the workers with
// the best fit it chooses the one on which the request costs least. cost.go defines the cost,
// fit.go the fit. The final choice is rendezvous hashing for requests with a routing key, and the
// power of two choices for all others: schedulers that see the same fleet would otherwise all
// choose the same worker.
//
// Some counts change between snapshots. They are in each worker's Load, which all picks of this
// process share, so that a burst spreads before any worker has reported it. Cached prefixes are in
// one Index for each model and digest, which package fleet updates through Prefixes. A pick among
// 300 workers takes 4 us, or 9 us if all of them have a part of the prefix, and allocates nothing
// (docs/decisions/025).
//
// The package has no clock, socket, goroutine or logger, imports only the standard library, and
// does not depend on gRPC: a refusal is a sentinel, which package rpcstatus maps to a status.
package route
