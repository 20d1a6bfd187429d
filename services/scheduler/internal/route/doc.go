// Package route decides which worker serves a request.
//
// Pick is a pure function of a Snapshot and a Request: filters take workers away, then the one with the fewest
// outstanding tokens is chosen. Counts that change between snapshots live in each worker's Load, which every pick in
// this process shares, so that a burst spreads before any worker has reported it.
//
// The package has no clock, socket, goroutine or logger, and imports the standard library only. It knows nothing of
// gRPC: a refusal is a sentinel, and whoever serves maps it to a status.
package route
