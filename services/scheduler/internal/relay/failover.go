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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

const (
	// round is how long one search for a worker may take: those that failed are passed over in the first only.
	round = 250 * time.Millisecond
	// pauseFirst is the pause before the second search; it doubles up to pauseMax, which is about what the call is late when a
	// worker comes back.
	pauseFirst = 5 * time.Millisecond
	pauseMax   = 200 * time.Millisecond
	// A call is ended before its deadline by a twentieth of what is left, at most deadlineMargin: a trailer sent at the deadline
	// itself never arrives.
	deadlineMargin = 250 * time.Millisecond
)

// failover is the search for workers that go on with a call.
type failover struct {
	last    string    // the worker of the last attempt
	began   time.Time // the last attempt
	exclude []string  // workers that have failed since one brought a token, or a search found none
	// unloaded are those that have taken the model out since their last report: they may be asked again when it is loaded anew.
	unloaded []string
	since    time.Time // when the stream broke, as if attempts took no time; zero when a worker brings tokens
	rounds   int       // searches in vain since then
	tries    int       // attempts since then
}

// begin notes an attempt.
func (f *failover) begin(worker string) { f.last, f.began = worker, time.Now() }

// flows forgets the search: a worker brings tokens. One that only says that it has started may go on failing for ever.
func (f *failover) flows() {
	if !f.since.IsZero() || len(f.exclude)+len(f.unloaded) > 0 { // most tokens: nothing is written
		f.forgive()
		f.since, f.rounds, f.tries = time.Time{}, 0, 0
	}
}

// failed notes that the worker of the last attempt failed, and in which words.
func (f *failover) failed(err error) {
	f.tries++
	switch rpc.Reason(err) {
	case reason.ModelNotLoaded, reason.ModelDraining, reason.ModelUnloaded:
		f.unloaded = append(f.unloaded, f.last)
	default:
		f.exclude = append(f.exclude, f.last)
	}
	if !f.since.IsZero() { // what counts is how long the stream waits for a worker, and not how long one computes
		f.since = f.since.Add(time.Since(f.began))
	}
}

// forgive lets those that failed be asked again.
func (f *failover) forgive() { f.exclude, f.unloaded = f.exclude[:0], f.unloaded[:0] }

// pause is how long to wait before the next search: spread, so that the streams of one lost worker do not search in step.
func (f *failover) pause() time.Duration {
	d := min(pauseFirst<<min(f.rounds, 16), pauseMax)
	f.rounds++
	return d/2 + rand.N(d)
}

// resume finds a worker for the rest of a stream, and waits for one: a worker of its class as long as half of the wait, then one
// of any class where that may be. The workers that failed are passed over while there are others.
func (c *call) resume(end *ending) (lease *admission.Lease, inexact bool, err error) {
	f := &c.failover
	if f.since.IsZero() {
		f.since = time.Now()
	}
	until := f.since.Add(c.options.FailoverWait)
	if deadline, ok := c.ctx.Deadline(); ok {
		until = deadline.Add(-min(deadlineMargin, deadline.Sub(f.since)/20))
	}
	exactUntil := f.since.Add(min(c.options.FailoverWait, until.Sub(f.since)) / 2)
	if c.options.RefuseInexact || c.route.ClassID != "" {
		exactUntil = until
	}
	err = end.err
	// The first search is at once. Those behind one in vain, or behind a worker that had been asked in the place of another, come less
	// and less often.
	for searched := f.tries > 1; ; searched = true {
		if searched {
			pause := f.pause()
			if time.Now().Add(pause).After(until) {
				return nil, false, c.unplaced(end, err)
			}
			if !sleep(c.ctx, pause) {
				return nil, false, c.ended()
			}
		}
		request := c.rest(c.log.Open())
		request.Resumes, request.Digest, request.ClassID = true, c.log.Digest(), c.log.Class()
		request.Exclude, request.Unloaded = f.exclude, f.unloaded
		request.Length, request.Context = c.log.Length(), c.log.Length()
		if time.Now().After(exactUntil) {
			request.ClassID = ""
		}
		searching, cancel := context.WithDeadline(c.ctx, earlier(time.Now().Add(round), until))
		lease, err = c.places.Place(searching, request)
		cancel()
		switch {
		case err == nil:
			return lease, request.ClassID == "" && lease.ClassID != c.log.Class(), nil
		case c.ctx.Err() != nil:
			return nil, false, c.ended()
		}
		f.forgive()
	}
}

// unplaced is the end of a stream that no worker took in time.
func (c *call) unplaced(end *ending, refusal error) error {
	if _, timed := c.ctx.Deadline(); timed {
		c.usage()
		return fault.Status(context.DeadlineExceeded)
	}
	return c.over(end, fmt.Sprintf("no other worker took it within %v (%s), and it may need a context of %d tokens",
		c.options.FailoverWait, status.Convert(refusal).Message(), c.log.Length()))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// sleep waits; false means that ctx ended first.
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
