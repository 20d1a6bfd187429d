package batch

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// A sequence under a grammar is planned like any other, two steps ahead. Its mask for step n+1 follows
// from the token that step n samples, so the step is submitted without it (engine.SampleRow.MaskLate),
// and the mask is made while the device computes everything of the step but the samples:
//
//	loop    submit 2 | wait | deliver 1 | masks 2 | submit 3 | wait | deliver 2 | masks 3
//	                v                        v           v                           v
//	device  = step 1 =][==== step 2, forward ====][sample][==== step 3, forward =====][sample]
//
// The state of the grammar is a value that follows from the ids alone. So a preempted sequence keeps
// it, a resumed one computes it from the ids that it brings, and a group shares it.

// checkGuided returns an error for a request under a grammar that this loop cannot serve.
func (l *Loop) checkGuided(r *Request) error {
	for _, c := range r.Continuations {
		if c.Guide.Free() {
			continue
		}
		if l.masker == nil {
			return fmt.Errorf("%w: masks that follow a step, which a grammar needs", engine.ErrUnsupported)
		}
	}
	return nil
}

// maskBuffer has the masks of a step. Its memory is used again for the next one.
type maskBuffer struct {
	rows  [][]uint32
	spare [][]uint32
}

// next returns a mask of the given number of words. Its content is undefined.
func (b *maskBuffer) next(words int) []uint32 {
	n := len(b.rows)
	if n == len(b.spare) {
		b.spare = append(b.spare, nil)
	}
	if len(b.spare[n]) != words {
		b.spare[n] = make([]uint32, words)
	}
	b.rows = append(b.rows, b.spare[n])
	return b.spare[n]
}

// sendMasks makes the masks of the newest step, if it waits for some and no earlier step is in flight,
// whose samples they may depend on. It must be called after each submission and each delivery, because
// neither the step nor the one after it continues before. An error ends the loop: the step would never end.
func (l *Loop) sendMasks() error {
	if len(l.flights) != 1 || l.flights[0].guided == 0 {
		return nil
	}
	f := l.flights[0]
	f.guided = 0
	l.masks.rows = l.masks.rows[:0]
	for _, p := range f.parts {
		if !p.sampled || p.seq.guide.Free() {
			continue
		}
		s := p.seq
		mask := l.masks.next(s.guide.Words())
		if !s.ended && !s.stream.cancelled.Load() {
			err := s.guide.Mask(mask)
			if err == nil {
				continue
			}
			s.stream.end(fmt.Errorf("%w: at position %d: %w", ErrGuide, len(s.tokens), err))
			l.retire(s)
		}
		for i := range mask { // the sample is dropped
			mask[i] = math.MaxUint32
		}
	}
	if err := l.masker.Masks(l.masks.rows); err != nil {
		return fmt.Errorf("the engine does not take the masks of a step: %w", err)
	}
	return nil
}

// follow advances the grammar of s by a sampled token.
func (s *sequence) follow(id int32) error {
	if s.guide.Free() {
		return nil
	}
	next, err := s.guide.Advance(id)
	if err != nil {
		return fmt.Errorf("%w: token %d at position %d: %w", ErrGuide, id, len(s.tokens), err)
	}
	s.guide = next
	return nil
}
