package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// plan is the round's work and the step made of it, their memory reused from round to round.
type plan struct {
	chosen []part // what the round is to compute
	scores int    // score rows of chosen

	// moves are block copies that were decided and are in no step yet. They go with the next step that the engine takes, before its
	// segments, whatever sequences those are of: each assumes what was done before it, and every step planned since then assumes them.
	moves []engine.PreOp
	// returning are host blocks that are free once the moves are submitted.
	returning []int32

	step   engine.Step
	params []engine.SlotParams // of the step's pre-operations
	next   *flight             // what the step becomes once the engine takes it
	spare  []*flight           // to be used again
}

// part is a run of tokens of one sequence.
type part struct {
	seq     *sequence
	count   int
	decodes bool // it is the next token of a sequence that decodes; set by compose
	sampled bool // it has the next sample row; set by compose
	scored  int  // it has so many score rows; set by compose
}

// take adds the next n tokens of s to the round.
func (p *plan) take(s *sequence, n int) {
	p.chosen = append(p.chosen, part{seq: s, count: n})
	p.scores += s.scoreRows(n)
}

// compose makes the step of some of the chosen parts and says whether it has any. It changes no sequence, so that a step that
// the engine refuses leaves nothing to be taken back. Left out are sequences that were cancelled or have ended since the round
// was planned.
//
// The step counts as submitted from here on: a cancellation is either seen here, or finds the sequence in a step that was
// submitted before it. That is why both happen under the mail's lock.
func (l *Loop) compose(parts []part) bool {
	p := &l.plan
	p.begin(len(l.slots))
	l.mail.Lock()
	defer l.mail.Unlock()
	for _, part := range parts {
		if !part.seq.over && !part.seq.stream.cancelled.Load() {
			p.add(part.seq, part.count)
		}
	}
	if len(p.next.parts) == 0 {
		return false
	}
	l.mail.submitted++
	p.next.number = l.mail.submitted
	return true
}

// begin empties the step and the flight to be.
func (p *plan) begin(slots int) {
	p.step.PreOps, p.step.Segments = append(p.step.PreOps[:0], p.moves...), p.step.Segments[:0]
	p.step.Samples, p.step.Scores = p.step.Samples[:0], p.step.Scores[:0]
	p.params = slices.Grow(p.params[:0], slots) // pointers into it stay good
	if p.next == nil {
		p.next = &flight{}
		if n := len(p.spare); n > 0 {
			p.next, p.spare = p.spare[n-1], p.spare[:n-1]
		}
	}
	*p.next = flight{parts: p.next.parts[:0]}
}

// add puts the next n tokens of s into the step.
func (p *plan) add(s *sequence, n int) {
	if s.fresh {
		p.params = append(p.params, s.request.Params)
		p.step.PreOps = append(p.step.PreOps, engine.PreOp{
			Slot: s.slot, SlotGeneration: s.generation, Params: &p.params[len(p.params)-1], History: s.tokens[:s.submitted],
		})
	}
	f := p.next
	class, run := s.next(n)
	p.step.Segments = append(p.step.Segments, engine.Segment{
		Slot: s.slot, SlotGeneration: s.generation, Class: class,
		FirstPosition: int32(s.submitted), Tokens: run, Blocks: s.table.Blocks,
	})
	part := part{seq: s, count: len(run), decodes: s.decoding()}
	if s.request.PromptTopN >= 0 {
		for i := range run {
			// Position i of the run predicts the prompt token after it; one scored before a preemption is not again.
			if next := s.submitted + i + 1; next < s.promptLength && next > s.scored {
				p.step.Scores = append(p.step.Scores, engine.ScoreRow{
					TokenIndex: int32(f.tokens + i), Target: s.tokens[next], TopN: int32(s.request.PromptTopN),
				})
				part.scored++
			}
		}
	}
	if s.submitted+len(run) == s.length() && s.length()-s.promptLength < s.request.MaxTokens {
		p.step.Samples = append(p.step.Samples, engine.SampleRow{
			TokenIndex: int32(f.tokens + len(run) - 1), Slot: s.slot, SlotGeneration: s.generation,
			Position: int32(s.length()),
		})
		part.sampled = true
	}
	f.tokens += len(run)
	if part.decodes {
		f.decode++
	}
	f.parts = append(f.parts, part)
}
