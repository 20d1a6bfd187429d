package fleet

import (
	"context"
	"time"
)

// awaitTimeout bounds the wait for a worker's report of what it was told to do. A worker that does not report it in time is no reason
// to fail.
const awaitTimeout = 2 * time.Second

// Await waits until the members of a snapshot of f hold, ctx ends, or two seconds are over, so that a caller who is told that something
// is done finds this scheduler of the same mind.
func Await(ctx context.Context, f interface{ Snapshot() *Snapshot }, holds func([]Member) bool) {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	for {
		snapshot := f.Snapshot()
		if holds(snapshot.Members) {
			return
		}
		select {
		case <-snapshot.Next:
		case <-ctx.Done():
			return
		}
	}
}
