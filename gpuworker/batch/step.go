package batch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

const (
	// hungGrace is how long a loop told to end waits for a step that does not.
	hungGrace = 5 * time.Second
	// resultPatience is how long a loop asks again for the result of a step that its runner does not give, and
	// resultPause is the time between two questions.
	resultPatience = 5 * time.Second
	resultPause    = 10 * time.Millisecond
)

// submit hands the composed step to the engine. An error that is not engine.ErrDevice is a refusal: by the contract of
// engine.Runner nothing has changed then, in the engine as in the loop.
func (l *Loop) submit() (begin time.Time, err error) {
	begin = time.Now()
	l.counters.stepStart.Store(int64(begin.Sub(l.made)))
	if err := l.runner.Submit(&l.plan.step); err != nil {
		l.counters.stepStart.Store(0)
		return begin, err
	}
	for _, p := range l.plan.parts {
		p.seq.fresh = false
	}
	l.mail.Lock()
	l.mail.submitted++
	l.mail.Unlock()
	return begin, nil
}

// wait gives the result of the step submitted at begin. By the contract of engine.Runner an error other than
// engine.ErrDevice leaves the step in flight and its result to be asked for again: that is done for resultPatience.
// A runner that keeps a result for longer cannot go on, because the next result that it gives would be this one.
func (l *Loop) wait(ctx context.Context, begin time.Time) (*engine.StepResult, error) {
	defer l.counters.stepStart.Store(0)
	var refused time.Time // since when the runner gives no result and does not say that the step runs; zero: it does not
	for {
		result, err := l.runner.Wait(time.Second)
		switch {
		case err == nil:
			l.measure(time.Since(begin))
			return result, nil
		case errors.Is(err, engine.ErrTimeout):
			refused = time.Time{}
			if ctx.Err() != nil && time.Since(begin) > hungGrace {
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
