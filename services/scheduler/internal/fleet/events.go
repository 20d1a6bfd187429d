package fleet

import (
	"errors"
	"sync/atomic"
)

// Events is how often what happened to health streams since the start.
type Events struct {
	// Resyncs are full reports asked for behind a gap in a worker's messages.
	Resyncs uint64
	// Unreached are streams that ended before a report came.
	Unreached uint64
	// Silent, Stalled and Disbelieved are streams given up with every request on the worker: ErrStale, ErrStalled, ErrDigest. Closed
	// are the others that had reported.
	Silent, Stalled, Disbelieved, Closed uint64
}

// Events are those so far.
func (f *Fleet) Events() Events {
	c := &f.counted
	return Events{
		Resyncs: c.resyncs.Load(), Unreached: c.unreached.Load(), Silent: c.silent.Load(), Stalled: c.stalled.Load(),
		Disbelieved: c.disbelieved.Load(), Closed: c.closed.Load(),
	}
}

// counted counts events.
type counted struct{ resyncs, unreached, silent, stalled, disbelieved, closed atomic.Uint64 }

// ended counts a stream that has ended, of a worker that is still followed.
func (c *counted) ended(reported bool, why error) {
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
