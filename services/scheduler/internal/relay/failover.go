package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

const (
	// searchTime bounds one search for a worker. Only the first search skips the workers that failed.
	searchTime = 250 * time.Millisecond
	// firstBackoff is the pause before the second search. It doubles up to maxBackoff, which is about
	// the delay that a call sees after a worker has come back.
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 200 * time.Millisecond
	// deadlineMargin bounds how long before its deadline a call is ended: by a twentieth of the time
	// that was left. A trailer sent at the deadline itself would never arrive, because the caller's
	// gRPC library has closed the stream by then.
	deadlineMargin = 250 * time.Millisecond
)

// failover is the state of the search for workers that continue a call.
type failover struct {
	lastWorker   string    // of the last attempt
	attemptBegan time.Time // of the last attempt
	exclude      []string  // workers that failed since tokens last arrived, or since a search found none
	// unloaded are workers that have unloaded the model since their last report. They may be asked
	// again after they have loaded it again.
	unloaded    []string
	brokenSince time.Time // when the stream broke, plus the time of attempts since; zero while tokens arrive
	searches    int       // searches since then that found no worker
	attempts    int       // attempts since then
}

// begin records the start of an attempt.
func (f *failover) begin(worker string) { f.lastWorker, f.attemptBegan = worker, time.Now() }

// succeed ends the search, because tokens arrive. `started` alone does not end it: a worker that
// sends nothing else could fail for ever.
func (f *failover) succeed() {
	if !f.brokenSince.IsZero() || len(f.exclude)+len(f.unloaded) > 0 { // false for almost every token
		f.clearExclusions()
		f.brokenSince, f.searches, f.attempts = time.Time{}, 0, 0
	}
}

// recordFailure records that the last attempt failed with err.
func (f *failover) recordFailure(err error) {
	f.attempts++
	switch rpc.Reason(err) {
	case reason.ModelNotLoaded, reason.ModelDraining, reason.ModelUnloaded:
		f.unloaded = append(f.unloaded, f.lastWorker)
	default:
		f.exclude = append(f.exclude, f.lastWorker)
	}
	if !f.brokenSince.IsZero() { // only the wait for a worker counts, not the time that one computed
		f.brokenSince = f.brokenSince.Add(time.Since(f.attemptBegan))
	}
}

// clearExclusions lets the workers that failed be chosen again.
func (f *failover) clearExclusions() { f.exclude, f.unloaded = f.exclude[:0], f.unloaded[:0] }

// backoff returns the pause before the next search: exponential with jitter, so that the streams of
// one lost worker do not search in step.
func (f *failover) backoff() time.Duration {
	d := min(firstBackoff<<min(f.searches, 16), maxBackoff)
	f.searches++
	return d/2 + rand.N(d)
}

// resume leases a worker for the rest of a stream, and waits until one is found. For the first half
// of the wait it accepts only workers of the stream's numerics class, because only these compute
// the same tokens. After that it accepts any class, unless the operator or the caller forbids it.
func (c *call) resume(o *outcome) (lease *admission.Lease, inexact bool, err error) {
	f := &c.failover
	if f.brokenSince.IsZero() {
		f.brokenSince = time.Now()
	}
	until := f.brokenSince.Add(c.options.FailoverWait)
	if deadline, ok := c.ctx.Deadline(); ok {
		until = deadline.Add(-min(deadlineMargin, deadline.Sub(f.brokenSince)/20))
	}
	exactUntil := f.brokenSince.Add(min(c.options.FailoverWait, until.Sub(f.brokenSince)) / 2)
	if c.options.RefuseInexact || c.route.ClassID != "" {
		exactUntil = until
	}
	err = o.err
	// The first search of a broken stream starts at once. Later ones back off, also if the worker that
	// the first search found has failed.
	for wait := f.attempts > 1; ; wait = true {
		if wait {
			backoff := f.backoff()
			if time.Now().Add(backoff).After(until) {
				return nil, false, c.unplacedError(o, err)
			}
			if !sleep(c.ctx, backoff) {
				return nil, false, c.contextError()
			}
		}
		request := c.remaining(c.log.OpenOutputs())
		request.Resumes, request.Digest, request.ClassID = true, c.log.Digest(), c.log.Class()
		request.Exclude, request.Unloaded = f.exclude, f.unloaded
		request.Length, request.Context = c.log.Length(), c.log.Length()
		if time.Now().After(exactUntil) {
			request.ClassID = ""
		}
		searching, cancel := context.WithDeadline(c.ctx, earlier(time.Now().Add(searchTime), until))
		lease, err = c.placer.Place(searching, request)
		cancel()
		switch {
		case err == nil:
			return lease, request.ClassID == "" && lease.ClassID != c.log.Class(), nil
		case c.ctx.Err() != nil:
			return nil, false, c.contextError()
		}
		f.clearExclusions()
	}
}

// unplacedError returns the status of a stream for which no worker was found in time.
func (c *call) unplacedError(o *outcome, refusal error) error {
	if _, timed := c.ctx.Deadline(); timed {
		c.addUsage()
		return rpcstatus.Of(context.DeadlineExceeded)
	}
	return c.finalError(o, fmt.Sprintf("no other worker took it within %v (%s), and it may need a context of %d tokens",
		c.options.FailoverWait, status.Convert(refusal).Message(), c.log.Length()))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sleep waits for d. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
