package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// carryOut submits the round's parts as one step. Where the engine refuses that, they are computed as several smaller ones, one
// at a time and each to its end, so that a part that the engine does not take costs its own sequence and no other. What is in
// flight ends first: then every id is known, no part depends on the step before it, and one that was refused alone behind another
// step is another one, which is tried before its sequence ends. An error ends the loop: the device is
// lost, or the result of a step cannot be had.
func (l *Loop) carryOut(ctx context.Context) error {
	err := l.try(l.plan.chosen)
	if err == nil || errors.Is(err, engine.ErrDevice) {
		return err
	}
	why, behind := err, len(l.flights) > 0
	if err := l.settle(ctx); err != nil {
		return err
	}
	l.rest = l.rest[:0]
	if behind && len(l.plan.chosen) == 1 {
		l.counters.refused.Add(1)
		l.rest = append(l.rest, l.plan.chosen)
	} else {
		l.divide(l.plan.chosen, why)
	}
	for len(l.rest) > 0 && ctx.Err() == nil {
		parts := l.rest[len(l.rest)-1]
		l.rest = l.rest[:len(l.rest)-1]
		switch err := l.try(parts); {
		case errors.Is(err, engine.ErrDevice):
			return err
		case err != nil:
			l.divide(parts, err)
			continue
		}
		if err := l.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// try submits parts as one step, unless none of them is wanted any more. A step for whose blocks the host has no memory is tried
// again without them: their sequences are computed again.
func (l *Loop) try(parts []part) error {
	if !l.compose(parts) {
		return nil
	}
	err := l.submit()
	if errors.Is(err, engine.ErrOutOfMemory) && l.stay() {
		l.counters.refused.Add(1)
		return l.try(parts)
	}
	return err
}

// divide puts what is left to try of refused parts before the rest, or ends the sequence of the one that is refused for good.
func (l *Loop) divide(parts []part, why error) {
	l.counters.refused.Add(1)
	pieces := cut(parts, why)
	if pieces == nil && !parts[0].seq.over {
		l.refuse(parts[0].seq, why)
	}
	slices.Reverse(pieces) // the first goes first
	l.rest = append(l.rest, pieces...)
}

// cut says how to go on with the parts of a step that the engine refused for a reason. Several are tried again as two
// halves. One that is too much for the memory there is now is tried again with half of its tokens. Else nil: the engine
// does not take this part.
func cut(parts []part, why error) [][]part {
	switch n, first := len(parts), parts[0]; {
	case n > 1:
		return [][]part{parts[:n/2], parts[n/2:]}
	case first.count > 1 && errors.Is(why, engine.ErrOutOfMemory):
		return [][]part{{{seq: first.seq, count: first.count / 2}}}
	}
	return nil
}

// refuse ends a sequence with what the engine said of a step that had no other in it.
func (l *Loop) refuse(s *sequence, why error) {
	l.logger.Warn("engine refused a sequence, others go on", "request_id", s.request.ID, "position", s.submitted, "tokens", len(s.tokens), "error", why)
	s.stream.end(fmt.Errorf("the engine refused a step of this sequence alone, at position %d: %w", s.submitted, why))
	l.retire(s)
}
