// Package route decides which worker serves a request.
//
// Pick is a pure function of a Snapshot and a Request: filters take workers away, then, of those with the best room, the one is chosen
// where the request costs least; what a prompt costs is in cost.go, what room is in room.go. Counts that change between snapshots
// live in each worker's Load, which every pick in this process shares, so that a burst spreads before any worker has reported it; a
// Choice is taken from them before the request goes out. What workers have cached is in one Index for each model, which the fleet
// feeds through Prefixes.
//
// The package has no clock, socket, goroutine or logger, and imports the standard library only. It knows nothing of
// gRPC: a refusal is a sentinel, and whoever serves maps it to a status.
package route
