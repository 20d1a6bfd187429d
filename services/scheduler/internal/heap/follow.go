package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// period bounds how long the target is wrong after a burst of allocations, or after a collection
// that found a much larger live heap.
const period = 100 * time.Millisecond

// Follow sets the collector's target until ctx ends. Then it restores the previous one. Call it
// once in a process.
func Follow(ctx context.Context) {
	read := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	look := func() (live, allocated uint64) {
		metrics.Read(read)
		return read[0].Value.Uint64(), read[1].Value.Uint64()
	}
	live, allocated := look()
	set := percent(live, 0)
	before := debug.SetGCPercent(set)
	defer debug.SetGCPercent(before)
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	last, rate := time.Now(), Rate{}
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		live, sum := look()
		now := time.Now()
		if wanted := percent(live, rate.Next(sum-allocated, now.Sub(last))); apart(wanted, set) {
			debug.SetGCPercent(wanted) // it stops the program for a moment
			set = wanted
		}
		allocated, last = sum, now
	}
}

// apart reports whether two percentages differ by more than a tenth.
func apart(a, b int) bool { return 10*max(a-b, b-a) > b }
