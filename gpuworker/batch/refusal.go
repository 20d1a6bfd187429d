package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// carryOut computes the round's parts: as one step or, where the engine refuses that, as several smaller ones, so that a
// part that the engine does not take costs its own sequence and no other. An error ends the loop: the device is lost, or
// the result of a step cannot be had.
func (l *Loop) carryOut(ctx context.Context) error {
	l.rest = append(l.rest[:0], l.plan.chosen)
	for len(l.rest) > 0 && ctx.Err() == nil {
		parts := l.rest[len(l.rest)-1]
		l.rest = l.rest[:len(l.rest)-1]
		if l.plan.compose(parts, len(l.slots)); len(l.plan.parts) == 0 {
			continue
		}
		begin, err := l.submit()
		switch {
		case errors.Is(err, engine.ErrDevice):
			return err
		case err != nil:
			l.counters.refused.Add(1)
			pieces := cut(parts, err)
			if pieces == nil {
				l.refuse(parts[0].seq, err)
			}
			slices.Reverse(pieces) // the first goes first
			l.rest = append(l.rest, pieces...)
			continue
		}
		result, err := l.wait(ctx, begin)
		if err != nil {
			return err
		}
		l.deliver(result)
	}
	return nil
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
	l.logger.Warn("engine refused a sequence, others go on", "position", s.computed, "tokens", len(s.tokens), "error", why)
	s.stream.end(fmt.Errorf("the engine refused a step of this sequence alone, at position %d: %w", s.computed, why))
	l.retire(s)
}
