package fleet

import "time"

const (
	// staleTicks is how many ticks in a row must pass without a message before what sends none is given up. One long tick would also
	// count the time in which this very process got no processor, while messages lay in its sockets; after each tick they get their
	// turn.
	staleTicks = 7
	// slowTicks is the same for a worker whose own step bound is longer than Config.Stale: its machine is slow, or shared by many,
	// and its heartbeats may be as late as its steps.
	slowTicks = 10
	// askTicks is after how many a connection without a health stream is asked whether its server is there.
	askTicks = 2
)

// patience is how many ticks a worker may be silent that declares a bound for its steps.
func patience(bound, stale time.Duration) int {
	tick := stale / staleTicks
	return int(min(max((bound+tick-1)/tick, staleTicks), slowTicks))
}

// watch counts silence. It is pure: whoever has a clock tells it of each tick.
type watch struct{ quiet int }

// tick takes whether anything came since the last one. ask: for a while nothing did; lost: for more than most ticks, of which the
// first after a message is not a whole one.
func (w *watch) tick(heard bool, most int) (ask, lost bool) {
	if heard {
		w.quiet = 0
	}
	w.quiet++
	return w.quiet > askTicks, w.quiet > most
}
