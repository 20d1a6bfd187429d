package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// depth is how many steps may be in flight. Two are enough to hide the host's work: the device has
// the next step queued while the loop delivers and plans. A third would only make a cancellation or
// a new request wait one step longer.
const depth = 2

const (
	// hungGrace is how long a loop whose context has ended waits for a step that does not end.
	hungGrace = 5 * time.Second
	// resultPatience is how long the loop retries when its runner does not return the result of a
	// step. resultPause is the pause between two tries.
	resultPatience = 5 * time.Second
	resultPause    = 10 * time.Millisecond
)

// flight is a step between its submission and its result. A sequence may be in both flights. The
// later step relies on the state that the earlier one leaves, which follows from the plan without
// its result, except for the sampled ids.
type flight struct {
	number uint64 // of the step, from 1
	parts  []part
	tokens int // of all parts
	decode int // of these, tokens of decoding sequences
	hidden int // hidden rows of all parts
	// copying is about how long its copies between the device and host memory take.
	copying time.Duration
	guided  int // sample rows whose masks are not sent yet, see sendMasks
	// began is the earliest time at which the device started on it: its submission, or the end of
	// the step before it.
	began time.Time
}

// submit hands the composed step to the engine and, if it is accepted, advances its sequences. An
// error other than engine.ErrDevice is a refusal: by the contract of engine.Runner the engine's
// state is unchanged, and so is the loop's.
func (l *Loop) submit() error {
	now := time.Now()
	first := len(l.flights) == 0
	if first {
		l.counters.stepStart.Store(max(int64(now.Sub(l.created)), 1))
	}
	if err := l.runner.Submit(&l.plan.step); err != nil {
		if first {
			l.counters.stepStart.Store(0)
		}
		return err
	}
	f := l.plan.next
	f.began = now
	l.plan.next = nil
	f.copying = l.copying(l.plan.moves)
	l.counters.longest.Store(max(l.counters.longest.Load(), int64(f.copying))) // such a step is no hung one
	l.movesSubmitted()
	l.flights = append(l.flights, f)
	for _, p := range f.parts {
		s := p.seq
		s.fresh = false
		s.inFlight++
		s.submitted += p.count
		l.statesSubmitted(s, &p)
		if p.sampled {
			s.sampling++
			s.forced = 0
		}
	}
	return nil
}

// finishOldest waits for the oldest step in flight and delivers its results.
func (l *Loop) finishOldest(ctx context.Context) error {
	if err := l.sendMasks(); err != nil {
		return err
	}
	f := l.flights[0]
	result, err := l.wait(ctx, f)
	if err != nil {
		return err
	}
	now := time.Now()
	l.flights = append(l.flights[:0], l.flights[1:]...)
	began := int64(0)
	if len(l.flights) > 0 {
		l.flights[0].began = now
		began = max(int64(now.Sub(l.created)), 1)
	}
	l.counters.stepStart.Store(began)
	l.inbox.Lock()
	l.inbox.ended++
	l.inbox.Unlock()
	took := l.recordStep(f, result.DeviceTime, now.Sub(f.began))
	l.deliver(f, result, took, now)
	clear(f.parts)
	l.plan.spare = append(l.plan.spare, f)
	return l.sendMasks()
}

// finishAll finishes every step in flight.
func (l *Loop) finishAll(ctx context.Context) error {
	for len(l.flights) > 0 {
		if err := l.finishOldest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wait returns the result of the oldest step in flight. By the contract of engine.Runner an error
// other than engine.ErrDevice leaves the step in flight, so wait retries for resultPatience. A
// runner that fails for longer cannot be used any more, because its next result would be this
// step's.
func (l *Loop) wait(ctx context.Context, f *flight) (*engine.StepResult, error) {
	var refused time.Time // first of the errors in a row; zero: none
	for {
		result, err := l.runner.Wait(time.Second)
		switch {
		case err == nil:
			return result, nil
		case errors.Is(err, engine.ErrTimeout):
			refused = time.Time{}
			if ctx.Err() != nil && time.Since(f.began) > hungGrace {
				return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			continue
		case errors.Is(err, engine.ErrDevice):
			return nil, err
		}
		if refused.IsZero() {
			refused = time.Now()
			l.logger.Warn("engine does not give the result of a step, asking again", "error", err)
		}
		if time.Since(refused) > resultPatience {
			return nil, fmt.Errorf("the engine gave no result for %v: %w", resultPatience, err)
		}
		time.Sleep(resultPause)
	}
}

// recordStep updates the measured rates with a finished step and returns how long it took. It
// prefers the device's own time: wall time includes waits of the loop and misses device work that
// was done before the loop looked.
func (l *Loop) recordStep(f *flight, device, wall time.Duration) (took time.Duration) {
	took = device
	if took <= 0 {
		took = wall
	}
	l.counters.steps.Add(1)
	l.lastStep = took
	l.counters.stepEnd.Store(max(int64(time.Since(l.created)), 1))
	longest := time.Duration(l.counters.longest.Load())
	l.counters.longest.Store(int64(max(took, wall, longest-longest/64)))
	sizer := &l.prefillOnly
	if f.decode > 0 {
		sizer = &l.mixed
	}
	// The sizer learns from prefill tokens alone. Decode tokens take a part of the step too; the
	// target then leaves less for prefill, as it should.
	// The time excludes copies of the host tier.
	prefill, computing := f.tokens-f.decode, max(took-f.copying, took/4)
	if prefill > 0 {
		sizer.learn(prefill, computing, l.cfg.Runner.MaxBatchedTokens-f.decode)
	} else {
		l.coalescer.learn(computing)
	}
	l.account(f, took)
	if prefill >= MinChunk { // shorter chunks measure the fixed cost of a step
		l.prefill.learn(prefill, computing)
	}
	if o := l.cfg.Observer; o != nil {
		o.Stepped(len(f.parts), prefill, f.decode, took)
	}
	return took
}
