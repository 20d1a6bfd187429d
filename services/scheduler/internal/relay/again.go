package relay

import (
	"errors"
	"time"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// gone is whether the worker went without a word, or said that it is about to go.
func (e *ending) gone() bool {
	switch rpc.Reason(e.err) {
	case reason.WorkerStopping, reason.WorkerDraining, reason.Cancelled:
		return true
	}
	return e.lost
}

// unsent is whether the worker has heard nothing of the request.
func (e *ending) unsent() bool { return e.lost && e.of == worker }

// unreadyPause is the time between two looks at a worker that is not ready.
const unreadyPause = 100 * time.Millisecond

// again places a call whose caller has nothing of its answer once more, in the turn that it had: on a worker that has not failed it.
// Where nobody else is left because the last one is gone, it is placed as a new call would be: it waits for a worker to come, also for
// that one. The search is bounded as that of a stream is.
func (c *call) again(end *ending) (lease *admission.Lease, err error) {
	f := &c.failover
	request := c.rest(int(c.route.Sequences))
	request.Exclude, request.Unloaded, request.Context = f.exclude, f.unloaded, c.longer
	lease, err = c.places.Place(c.ctx, request)
	// A verdict on the request must not depend on a step that took long: the worker that has the context may serve in a moment.
	for begun := time.Now(); route.Unready(err) && time.Since(begun) < c.options.FailoverWait && sleep(c.ctx, unreadyPause); {
		lease, err = c.places.Place(c.ctx, request)
	}
	if err == nil || !end.gone() || errors.Is(err, admission.ErrQueueTimeout) {
		return lease, err
	}
	if f.since.IsZero() {
		f.since = time.Now()
	}
	if time.Since(f.since) > c.options.FailoverWait || f.tries > 1 && !sleep(c.ctx, f.pause()) {
		return nil, err
	}
	request.Exclude = nil
	return c.places.Place(c.ctx, request)
}
