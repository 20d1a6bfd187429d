package fleet

import (
	"errors"
	"sync/atomic"
)

// Events counts events of health streams since the start.
type Events struct {
	// Resyncs are full reports that were requested because of a gap in a worker's messages.
	Resyncs uint64
	// Unreached are streams that ended before a report arrived.
	Unreached uint64
	// Silent, Stalled and Disbelieved are streams that were given up with every request on the
	// worker, for ErrStale, ErrStalled and ErrDigest. Closed are the other streams that had
	// reported.
	Silent, Stalled, Disbelieved, Closed uint64
}

// Events returns the counts so far.
func (f *Fleet) Events() Events {
	c := &f.events
	return Events{
		Resyncs: c.resyncs.Load(), Unreached: c.unreached.Load(), Silent: c.silent.Load(), Stalled: c.stalled.Load(),
		Disbelieved: c.disbelieved.Load(), Closed: c.closed.Load(),
	}
}

// eventCounters are the counters of Events.
type eventCounters struct{ resyncs, unreached, silent, stalled, disbelieved, closed atomic.Uint64 }

// streamEnded counts the end of the stream of a worker that is still followed.
func (c *eventCounters) streamEnded(reported bool, why error) {
	switch {
	case !reported:
		c.unreached.Add(1)
	case errors.Is(why, ErrStale):
		c.silent.Add(1)
	case errors.Is(why, ErrStalled):
		c.stalled.Add(1)
	case errors.Is(why, ErrDigest):
		c.disbelieved.Add(1)
	default:
		c.closed.Add(1)
	}
}
