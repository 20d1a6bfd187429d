package relay

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// unreadyPause is the time between two attempts to place a call whose only suitable worker is not
// ready.
const unreadyPause = 100 * time.Millisecond

// retryFromStart places a call again if no frame of its answer was sent. It keeps the call's
// position in the queue and skips workers that already failed it.
//
// If no other worker is left because the last one is gone, the call is placed as a new one would
// be: it waits for a worker to come, and may get the same one when that is back. FailoverWait
// bounds the search, as it does for a stream.
func (c *call) retryFromStart(o *outcome) (lease *admission.Lease, err error) {
	f := &c.failover
	request := c.remaining(int(c.route.Sequences))
	request.Exclude, request.Unloaded, request.Context = f.exclude, f.unloaded, c.minContext
	lease, err = c.placer.Place(c.ctx, request)
	// A worker that has the context exists and is not ready, for example during a step that takes
	// long. Wait for it, because whether a prompt is too long must not depend on such a moment.
	for begun := time.Now(); route.Unready(err) && time.Since(begun) < c.options.FailoverWait && sleep(c.ctx, unreadyPause); {
		lease, err = c.placer.Place(c.ctx, request)
	}
	if err == nil || !o.workerGone() || errors.Is(err, admission.ErrQueueTimeout) {
		return lease, err
	}
	if f.brokenSince.IsZero() {
		f.brokenSince = time.Now()
	}
	if time.Since(f.brokenSince) > c.options.FailoverWait || f.attempts > 1 && !sleep(c.ctx, f.backoff()) {
		return nil, err
	}
	request.Exclude = nil
	return c.placer.Place(c.ctx, request)
}

// The retry budget is a token bucket, as in gRPC's retry throttling (gRFC A6). A retry costs
// retryCost; an answered call returns answerRefund, a tenth of that. If the fleet fails many calls
// before their first frame, retries add a tenth to the load instead of tripling it.
const (
	budgetMax    = 10_000 // a thousand retries: about the calls in flight on one lost worker
	retryCost    = 10
	answerRefund = 1
)

// retryBudget limits how often first attempts are retried. Resumed streams do not draw on it,
// because their callers cannot be sent away. It is safe for concurrent use.
//
// Invariant: 0 <= left <= budgetMax.
type retryBudget struct{ left atomic.Int64 }

// fill sets the budget to its maximum.
func (b *retryBudget) fill() { b.left.Store(budgetMax) }

// withdraw pays for one retry. It returns false if less than the cost of one is left.
func (b *retryBudget) withdraw() bool {
	for {
		left := b.left.Load()
		if left < retryCost {
			return false
		}
		if b.left.CompareAndSwap(left, left-retryCost) {
			return true
		}
	}
}

// refund returns the share that an answered call earns.
func (b *retryBudget) refund() {
	for {
		left := b.left.Load()
		if left >= budgetMax {
			return // the usual case, which must not write to a cache line that all calls share
		}
		if b.left.CompareAndSwap(left, left+answerRefund) {
			return
		}
	}
}
