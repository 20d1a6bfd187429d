package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// depth is how many steps are in flight at most: while the device computes one, the results of the step before are delivered
// and the one behind it is planned, so that the device never waits for the loop.
const depth = 2

const (
	// hungGrace is how long a loop told to end waits for a step that does not.
	hungGrace = 5 * time.Second
	// resultPatience is how long a loop asks again for the result of a step that its runner does not give, and
	// resultPause is the time between two questions.
	resultPatience = 5 * time.Second
	resultPause    = 10 * time.Millisecond
)

// flight is a step between its submission and its result. A sequence may be in both flights, and what the later one assumes
// of it is what the earlier one leaves: that is known without reading its result, but for the sampled ids.
type flight struct {
	number uint64 // of the step; the loop's first is 1
	parts  []part
	tokens int // of all parts
	decode int // of tokens, those of sequences that decode
	// began is when the device turned to it at the earliest: when it was submitted, or the step before it ended.
	began time.Time
}

// submit hands the composed step to the engine. An error that is not engine.ErrDevice is a refusal: by the contract of
// engine.Runner nothing has changed then, in the engine as in the loop.
func (l *Loop) submit() error {
	now := time.Now()
	first := len(l.flights) == 0
	if first {
		l.counters.stepStart.Store(max(int64(now.Sub(l.made)), 1))
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
	l.moved()
	l.flights = append(l.flights, f)
	for _, p := range f.parts {
		s := p.seq
		s.fresh = false
		s.flying++
		s.submitted += p.count
		if p.sampled {
			s.sampling++
		}
	}
	return nil
}

// land waits for the oldest step in flight and delivers its results.
func (l *Loop) land(ctx context.Context) error {
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
		began = max(int64(now.Sub(l.made)), 1)
	}
	l.counters.stepStart.Store(began)
	l.mail.Lock()
	l.mail.ended++
	l.mail.Unlock()
	took := l.measure(f, result.DeviceTime, now.Sub(f.began))
	l.deliver(f, result, took, now)
	clear(f.parts)
	l.plan.spare = append(l.plan.spare, f)
	return nil
}

// settle lands every step in flight.
func (l *Loop) settle(ctx context.Context) error {
	for len(l.flights) > 0 {
		if err := l.land(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wait gives the result of the oldest step in flight. By the contract of engine.Runner an error other than engine.ErrDevice
// leaves the step in flight and its result to be asked for again: that is done for resultPatience. A runner that keeps a
// result for longer cannot go on, because the next result that it gives would be this one.
func (l *Loop) wait(ctx context.Context, f *flight) (*engine.StepResult, error) {
	var refused time.Time // since when the runner gives no result and does not say that the step runs; zero: it does not
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

// measure learns from a step that has ended how long steps take. The device's own time is what its work took; the wall's also
// has what the loop waited for, and none of what the device did before the loop looked. It gives what the step took.
func (l *Loop) measure(f *flight, device, wall time.Duration) (took time.Duration) {
	took = device
	if took <= 0 {
		took = wall
	}
	l.counters.steps.Add(1)
	l.counters.stepEnd.Store(max(int64(time.Since(l.made)), 1))
	longest := time.Duration(l.counters.longest.Load())
	l.counters.longest.Store(int64(max(took, wall, longest-longest/64)))
	of := &l.alone
	if f.decode > 0 {
		of = &l.shared
	}
	// Its tokens without those of sequences that decode, which take their part of the time: what is left fits.
	prefill := f.tokens - f.decode
	if prefill > 0 {
		of.learn(prefill, took, l.cfg.Runner.MaxBatchedTokens-f.decode)
	} else {
		l.gather.learn(took)
	}
	l.weigh(f, took)
	if prefill >= MinChunk { // shorter ones say more of what a step costs than of what a token does
		l.prefill.learn(prefill, took)
	}
	if o := l.cfg.Observer; o != nil {
		o.Stepped(len(f.parts), prefill, f.decode, took)
	}
	return took
}
