package heap

import "time"

const (
	// least is the garbage that may always pile up: little enough to stay in a processor's caches, where a call that comes alone
	// finds its memory sooner.
	least = 4 << 20
	// most is the garbage that may pile up beside little that is alive, however fast it comes.
	most = 48 << 20
	// between is the time between two collections that the garbage in between gets.
	between = 2 * time.Second
	// shareOfMore of what is alive beyond most may pile up besides.
	shareOfMore = 8
)

// Room is how many bytes of garbage may pile up beside so many that are alive, where so many are allocated in a second.
func Room(live, perSecond uint64) uint64 {
	garbage := uint64(least)
	for garbage < min(perSecond, most)*uint64(between/time.Second) {
		garbage *= 2 // in steps: a change stops the program
	}
	return min(garbage, most) + (max(live, most)-most)/shareOfMore
}

// Rate is how many bytes are allocated in a second, as it was lately: it grows at once and falls slowly, since a burst that was
// there may come again. The zero Rate is ready.
type Rate struct{ perSecond uint64 }

// slowly is the part by which a rate falls in one period at most.
const slowly = 8

// Next is the rate after a period in which so many bytes were allocated.
func (r *Rate) Next(allocated uint64, period time.Duration) uint64 {
	now := uint64(float64(allocated) / max(period, time.Millisecond).Seconds())
	r.perSecond = max(now, r.perSecond-r.perSecond/slowly)
	return r.perSecond
}

// runtimeLeast is the heap that the runtime lets grow to at 100 percent, however little is alive; it scales with the percentage.
const runtimeLeast = 4 << 20

// percent is Room as the runtime wants it.
func percent(live, perSecond uint64) int {
	live = max(live, runtimeLeast)
	return int(100 * Room(live, perSecond) / live)
}
