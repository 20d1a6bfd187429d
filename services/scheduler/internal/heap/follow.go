package heap

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// period is how long a collection that found much more alive than the one before may be obeyed wrongly.
const period = 100 * time.Millisecond

// Follow gives the heap its room until ctx ends; then it restores what was set before. Call it once for a process.
func Follow(ctx context.Context) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	set := percent(live[0].Value.Uint64())
	before := debug.SetGCPercent(set)
	defer debug.SetGCPercent(before)
	ticks := time.NewTicker(period)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		metrics.Read(live)
		if now := percent(live[0].Value.Uint64()); apart(now, set) {
			debug.SetGCPercent(now) // it stops the program for a moment
			set = now
		}
	}
}

// apart reports whether two percentages differ by more than a tenth.
func apart(a, b int) bool { return 10*max(a-b, b-a) > b }
