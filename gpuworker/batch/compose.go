package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// plan is the round's work and the step made of it, their memory reused from round to round.
type plan struct {
	chosen []part // what the round is to compute
	scores int    // score rows of chosen

	step     engine.Step
	params   []engine.SlotParams
	parts    []part // of step
	tokens   int    // of step
	decoding int    // of tokens, those of sequences that decode
}

// part is a run of tokens of one sequence.
type part struct {
	seq     *sequence
	count   int
	sampled bool // it has the next sample row; set by compose
	scored  int  // it has so many score rows; set by compose
}

// take adds the next n tokens of s to the round.
func (p *plan) take(s *sequence, n int) {
	p.chosen = append(p.chosen, part{seq: s, count: n})
	p.scores += s.scoreRows(n)
}

// compose makes the step of some of the chosen parts. It changes no sequence, so that a step that the engine refuses leaves
// nothing to be taken back: fresh, computed, tokens, blocks, slot and generation are those from before. Sequences that
// were cancelled since the round was planned are left out.
func (p *plan) compose(parts []part, slots int) {
	p.step.PreOps, p.step.Segments = p.step.PreOps[:0], p.step.Segments[:0]
	p.step.Samples, p.step.Scores = p.step.Samples[:0], p.step.Scores[:0]
	p.params, p.parts, p.tokens, p.decoding = p.params[:0], p.parts[:0], 0, 0
	p.params = slices.Grow(p.params, slots) // pointers into it stay good
	for _, part := range parts {
		if !part.seq.stream.cancelled.Load() {
			p.add(part.seq, part.count)
		}
	}
}

// add puts the next n tokens of s into the step.
func (p *plan) add(s *sequence, n int) {
	if s.fresh {
		p.params = append(p.params, s.request.Params)
		p.step.PreOps = append(p.step.PreOps, engine.PreOp{
			Slot: s.slot, SlotGeneration: s.generation, Params: &p.params[len(p.params)-1],
		})
	}
	class, run := s.next(n)
	p.step.Segments = append(p.step.Segments, engine.Segment{
		Slot: s.slot, SlotGeneration: s.generation, Class: class,
		FirstPosition: int32(s.computed), Tokens: run, Blocks: s.blocks,
	})
	part := part{seq: s, count: len(run)}
	if s.request.PromptTopN >= 0 {
		for i := range run {
			// Position i of the run predicts the prompt token after it; one scored before a preemption is not again.
			if next := s.computed + i + 1; next < s.promptLength && next > s.scored {
				p.step.Scores = append(p.step.Scores, engine.ScoreRow{
					TokenIndex: int32(p.tokens + i), Target: s.tokens[next], TopN: int32(s.request.PromptTopN),
				})
				part.scored++
			}
		}
	}
	if s.computed+len(run) == len(s.tokens) && s.generated() < s.request.MaxTokens {
		p.step.Samples = append(p.step.Samples, engine.SampleRow{
			TokenIndex: int32(p.tokens + len(run) - 1), Slot: s.slot, SlotGeneration: s.generation,
			Position: int32(len(s.tokens)),
		})
		part.sampled = true
	}
	p.tokens += len(run)
	if s.decoding() {
		p.decoding++
	}
	p.parts = append(p.parts, part)
}
