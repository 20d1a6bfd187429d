package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// execute submits the round's parts as one step. If the engine refuses it, execute finds the part
// that the engine does not accept by bisection, so that it costs its own sequence and no other.
//
// Before it bisects, it finishes the steps in flight. Then every id is known and no part depends on
// an earlier step. A part that was refused alone while another step was in flight is tried once
// more: its step is a different one now. An error ends the loop, because the device is lost or the
// result of a step cannot be read.
func (l *Loop) execute(ctx context.Context) error {
	err := l.trySubmit(l.plan.chosen)
	switch {
	case err == nil:
		return l.sendMasks()
	case errors.Is(err, engine.ErrDevice):
		return err
	}
	cause, pipelined := err, len(l.flights) > 0
	if err := l.finishAll(ctx); err != nil {
		return err
	}
	l.retries = l.retries[:0]
	if pipelined && len(l.plan.chosen) == 1 {
		l.counters.refused.Add(1)
		l.retries = append(l.retries, l.plan.chosen)
	} else {
		l.split(l.plan.chosen, cause)
	}
	for len(l.retries) > 0 && ctx.Err() == nil {
		parts := l.retries[len(l.retries)-1]
		l.retries = l.retries[:len(l.retries)-1]
		switch err := l.trySubmit(parts); {
		case errors.Is(err, engine.ErrDevice):
			return err
		case err != nil:
			l.split(parts, err)
			continue
		}
		if err := l.finishAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// trySubmit submits parts as one step, unless all their sequences have ended. If the host has no
// memory for the step's moves out, it tries again without those of the host tier, and then without
// those of swapped sequences. The tier shrinks only if that helps: otherwise the device lacks memory.
func (l *Loop) trySubmit(parts []part) error {
	var refusal error // of a step with copies out to the tier
	for l.compose(parts) {
		err := l.submit()
		switch {
		case errors.Is(err, engine.ErrOutOfMemory) && l.cancelTierOuts():
			refusal = err
		case errors.Is(err, engine.ErrOutOfMemory) && l.cancelSwapOuts():
		case err == nil && refusal != nil:
			l.shrinkTier(refusal)
			return nil
		default:
			return err
		}
		l.counters.refused.Add(1)
	}
	return nil
}

// split puts the pieces of refused parts before the other retries, or ends the sequence of a part
// that cannot be split.
func (l *Loop) split(parts []part, cause error) {
	l.counters.refused.Add(1)
	pieces := halves(parts, cause)
	if pieces == nil && !parts[0].seq.ended {
		l.refuse(parts[0].seq, cause)
	}
	slices.Reverse(pieces) // retries is a stack
	l.retries = append(l.retries, pieces...)
}

// halves returns the pieces to try instead of refused parts: two halves of several parts, or half
// of the tokens of a single part that does not fit the device's free memory. It returns nil if the
// engine does not accept this part.
func halves(parts []part, cause error) [][]part {
	switch n, first := len(parts), parts[0]; {
	case n > 1:
		return [][]part{parts[:n/2], parts[n/2:]}
	case first.count > 1 && errors.Is(cause, engine.ErrOutOfMemory):
		return [][]part{{{seq: first.seq, count: first.count / 2}}}
	}
	return nil
}

// refuse ends a sequence with the engine's error for a step that contained nothing else.
func (l *Loop) refuse(s *sequence, cause error) {
	l.logger.Warn("engine refused a sequence, others continue", "request_id", s.request.ID, "position", s.submitted,
		"tokens", len(s.tokens), "error", cause)
	s.stream.end(fmt.Errorf("the engine refused a step of this sequence alone, at position %d: %w", s.submitted, cause))
	l.retire(s)
}
