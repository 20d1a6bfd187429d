package heap

import "time"

const (
	// least is the garbage that may always accumulate: little enough to stay in a processor's
	// caches, where a single call finds its memory sooner.
	least = 4 << 20
	// most is the garbage that may accumulate with a small live heap, at any rate.
	most = 48 << 20
	// between is the time between two collections for which garbage may accumulate.
	between = 2 * time.Second
	// shareOfMore of the live heap beyond most may accumulate in addition.
	shareOfMore = 8
)

// Room returns the bytes of garbage that may accumulate, given the live heap and the rate of
// allocation.
func Room(live, perSecond uint64) uint64 {
	garbage := uint64(least)
	for garbage < min(perSecond, most)*uint64(between/time.Second) {
		garbage *= 2 // in steps: a change stops the program
	}
	return min(garbage, most) + (max(live, most)-most)/shareOfMore
}

// Rate is the recent rate of allocation. It grows at once and falls slowly, because bursts repeat.
// The zero Rate is ready.
type Rate struct{ perSecond uint64 }

// slowly is the largest part by which a rate falls in one period.
const slowly = 8

// Next returns the rate after a period in which the given bytes were allocated.
func (r *Rate) Next(allocated uint64, period time.Duration) uint64 {
	now := uint64(float64(allocated) / max(period, time.Millisecond).Seconds())
	r.perSecond = max(now, r.perSecond-r.perSecond/slowly)
	return r.perSecond
}

// runtimeLeast is the heap at which the runtime first collects at 100 percent, however little is
// live. It scales with the percentage.
const runtimeLeast = 4 << 20

// percent returns Room as a percentage for the runtime.
func percent(live, perSecond uint64) int {
	live = max(live, runtimeLeast)
	return int(100 * Room(live, perSecond) / live)
}
