package relaybench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/services/bench/internal/scrape"
)

// still is the share of a processor below which nothing is relayed: what is left is the fleet's own news.
const still = 0.03

// Measures of a worker.
const (
	measureRunning = "millrace_running_sequences"
	measureWaiting = "millrace_waiting_sequences"
	measurePaused  = "millrace_paused_sequences"
	measureTokens  = "millrace_generated_tokens_total"
)

// look is what is seen of open streams at a moment.
type look struct {
	begun           int64   // of which the client has heard
	running, paused float64 // that have a place at their worker; of these, those whose readers must catch up first
	waiting         float64 // that have none, or lost it to others because their readers must catch up first
	tokens          float64 // that the workers have computed
	share           float64 // of a processor that the scheduler has used since the look before
	memory          uint64  // of the scheduler
}

// calm is how long nothing has moved.
type calm struct {
	streams int64
	stalled bool // whether flow control must hold every stream
	settle  time.Duration

	lasts time.Duration // since when nothing has moved
	last  look
}

// see takes what was seen after the time that passed since the look before, and says whether nothing has moved for long enough. The
// error says which streams are not what they should be.
func (c *calm) see(l look, passed time.Duration) (done bool, err error) {
	moved := l.share >= still || c.stalled && l.tokens != c.last.tokens
	c.last = l
	if l.begun < c.streams || moved {
		c.lasts = 0
	} else {
		c.lasts += passed
	}
	switch {
	case l.begun < c.streams:
		return false, nil
	// An idle stream has begun with its request, which may still be on its way to a worker.
	case l.running+l.waiting != float64(c.streams) && (c.stalled || c.lasts >= c.settle):
		return false, fmt.Errorf("%w: the workers have %.0f of %d open streams: give them more --tokens if they ended by themselves",
			ErrFailed, l.running+l.waiting, c.streams)
	case c.lasts < c.settle:
		return false, nil
	case c.stalled && l.paused < l.running:
		return false, fmt.Errorf("%w: no stream moves, and flow control does not hold %.0f of %d", ErrFailed, l.running-l.paused, c.streams)
	}
	return true, nil
}

// settle waits until every stream has begun and nothing has moved for a while: the scheduler uses no processor and, of stalled
// streams, flow control has stopped every one at its worker. It gives what was seen then.
func (c *OpenConfig) settle(ctx context.Context, f *fleet, state string, begun *atomic.Int64,
	tell func(format string, args ...any)) (look, error) {
	seen := calm{streams: int64(c.Streams), stalled: state == stateStalled, settle: c.Settle}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	began := time.Now()
	last, before := began, time.Duration(0)
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return look{}, context.Cause(ctx)
		}
		l, used, err := f.look(ctx, begun)
		if err != nil {
			return look{}, err
		}
		now := time.Now()
		l.share = float64(used-before) / float64(now.Sub(last))
		done, err := seen.see(l, now.Sub(last))
		if done || err != nil {
			return l, err
		}
		last, before = now, used
		says := fmt.Sprintf("%d of %d streams are there, %.0f held by flow control after %.0f tokens each, scheduler at %.2f processors, %s",
			l.begun, c.Streams, l.paused+l.waiting, l.tokens/float64(c.Streams), l.share, megabytes(l.memory))
		tell("%s", says)
		if now.Sub(began) > c.Within {
			return l, fmt.Errorf("%w: the streams are not still within %v: %s", ErrFailed, c.Within, says)
		}
	}
}

// look looks at workers and scheduler; used is the processor time of the latter.
func (f *fleet) look(ctx context.Context, begun *atomic.Int64) (l look, used time.Duration, err error) {
	l.begun = begun.Load() // first: what has begun is seen at the workers
	for i := range f.direct {
		w := &f.direct[i]
		if err := w.program.Check(); err != nil {
			return l, 0, err
		}
		for measure, to := range map[string]*float64{
			measureRunning: &l.running, measurePaused: &l.paused, measureWaiting: &l.waiting, measureTokens: &l.tokens,
		} {
			sum, err := scrape.Sum(ctx, w.metrics, measure)
			if err != nil {
				return l, 0, err
			}
			*to += sum
		}
	}
	scheduler := f.scheduler.program
	if err := scheduler.Check(); err != nil {
		return l, 0, err
	}
	if l.memory, err = scheduler.Memory(); err != nil {
		return l, 0, err
	}
	used, err = scheduler.CPU()
	return l, used, err
}

func megabytes(bytes uint64) string { return fmt.Sprintf("%.0f MB", float64(bytes)/1e6) }
