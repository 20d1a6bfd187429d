package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lateLocked returns the step in flight that waits for masks, or nil. It is the last one.
func (r *Runner) lateLocked() *flight {
	if r.mu.submitted == r.mu.waited {
		return nil
	}
	if f := r.flightLocked(r.mu.submitted - 1); f.late {
		return f
	}
	return nil
}

// Masks sets the masks that the step submitted last waits for, and samples it.
func (r *Runner) Masks(masks [][]uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.closed {
		return closed("runner")
	}
	f := r.lateLocked()
	if f == nil {
		return fmt.Errorf("no step waits for masks: %w", engine.ErrPrecondition)
	}
	late := 0
	for i := range f.rows {
		if !f.rows[i].MaskLate {
			continue
		}
		if late < len(masks) && len(masks[late]) != r.maskWords() {
			return fmt.Errorf("mask %d has %d words, want %d: %w", late, len(masks[late]), r.maskWords(), engine.ErrInvalid)
		}
		late++
	}
	if late != len(masks) {
		return fmt.Errorf("%d masks given, want %d: %w", len(masks), late, engine.ErrInvalid)
	}
	for i := range f.rows {
		if row := &f.rows[i]; row.MaskLate {
			row.Mask, masks = masks[0], masks[1:]
		}
	}
	f.late = false
	r.sampleAll(f)
	if now := time.Now(); now.After(f.end) {
		f.end = now
	}
	return nil
}

func (r *Runner) maskWords() int { return (r.model.desc.Vocab + 31) / 32 }

// takeRows notes the rows to be sampled, whose masks are the caller's again when the step waits for
// others.
func (r *Runner) takeRows(s *engine.Step, f *flight) {
	for i := range s.Samples {
		f.rows = append(f.rows, s.Samples[i])
		f.contexts = append(f.contexts, r.contextOf(s, s.Samples[i].TokenIndex))
		f.late = f.late || s.Samples[i].MaskLate
	}
	for i := range f.rows {
		if f.late {
			f.rows[i].Mask = slices.Clone(f.rows[i].Mask)
		}
	}
}

// contextOf returns the context of a token from the blocks of its segment: the tokens up to it, or
// the whole text and its position if a layer sees later positions. If that is not the slot's
// history, which a real engine could not detect, it returns a third context.
func (r *Runner) contextOf(s *engine.Step, token int32) uint64 {
	i, first := slices.BinarySearch(r.starts, token)
	if !first {
		i--
	}
	seg := &s.Segments[i]
	position := int(seg.FirstPosition + token - r.starts[i])
	last := position
	if r.whole {
		last = int(seg.FirstPosition) + len(seg.Tokens) - 1
	}
	holds, want := r.cache.context(seg.Blocks, last), r.slots[seg.Slot].history.context(last)
	if holds != want {
		holds = mix(holds, want)
	}
	if r.window.size > 0 && !r.window.holds(seg.WindowBlocks, &r.slots[seg.Slot].history, position) {
		holds = mix(holds, 2)
	}
	if last != position {
		holds = mix(holds, uint64(position))
	}
	if r.states.read != nil {
		holds = mix(holds, r.states.prefixes[token])
	}
	return holds
}

// sampleAll samples all rows of a step in order. PreviousSample then means the last row of a slot.
func (r *Runner) sampleAll(f *flight) {
	for i := range f.rows {
		f.result.Samples = append(f.result.Samples, r.sample(f, i))
	}
}

func (r *Runner) sample(f *flight, i int) engine.RowResult {
	row, context := &f.rows[i], f.contexts[i]
	sl := &r.slots[row.Slot]
	sl.lastSample = 0
	out := engine.RowResult{Slot: row.Slot, Position: row.Position, Status: engine.RowNaN}
	if f.nan == int32(i) {
		return out
	}
	d := newDistribution(context, r.model.desc.Vocab)
	rank := sl.sample(d, context, row, r.model.dev.opts.Reserved)
	if rank == 0 {
		out.Status = engine.RowEmpty
		return out
	}
	sl.lastSample = d.token(rank)
	out.Status, out.Token, out.Rank, out.Logprob = engine.RowOK, sl.lastSample, int32(rank), d.logprob(rank)
	out.Candidates = r.candidates(f, d, sl.params.TopN)
	return out
}

// candidates returns a slice of the flight's memory. Slices from before the memory grew stay valid.
func (r *Runner) candidates(f *flight, d distribution, n int32) []engine.Candidate {
	if n == 0 {
		return nil
	}
	at := len(f.candidates)
	f.candidates = d.candidates(f.candidates, int(n))
	return f.candidates[at:len(f.candidates):len(f.candidates)]
}

// appendHidden appends the hidden row of a context: numbers in [-1, 1).
func appendHidden(to []float32, context uint64, width int) []float32 {
	for i := range width {
		to = append(to, float32(int32(mix(context, uint64(i))>>40)-1<<23)/(1<<23))
	}
	return to
}
