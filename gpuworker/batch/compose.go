package batch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// plan is the work of a round and the step built from it. Their memory is reused from round to
// round.
type plan struct {
	chosen []part // tokens to compute
	scores int    // score rows of chosen
	hidden int    // hidden rows of chosen
	// maskSteps are the steps of walks that this round may still make before its step, see
	// awaitsMaskForState.
	maskSteps int

	// moves are block copies that no accepted step contains yet. They go with the next accepted
	// step, before its segments, whichever sequences that step computes. Their order matters: each
	// move, and every step planned later, assumes that the earlier moves were done.
	moves []engine.PreOp
	// returning are host blocks, returningWindows those of the window group, and returningStates
	// states of host memory, that become free when the moves are submitted.
	returning, returningWindows, returningStates []int32

	step   engine.Step
	params []engine.SlotParams // referenced by the step's pre-operations
	next   *flight             // becomes the flight of the step when the engine accepts it
	spare  []*flight           // free list
}

// part is a run of tokens of one sequence. compose sets all but the first two fields.
type part struct {
	seq     *sequence
	count   int
	decodes bool         // the run is of a decoding sequence: its last token and those that are forced after it
	sampled bool         // it has the next sample row
	held    bool         // its sample is dropped, see maskRow
	forced  int          // tokens that replace its sample, see force
	scored  int          // number of its score rows
	pooled  int          // number of its hidden rows
	state   int32        // where its state is then
	saved   []savedState // states that it saves
}

// schedule adds the next n tokens of s to the round.
func (p *plan) schedule(s *sequence, n int) {
	p.chosen = append(p.chosen, part{seq: s, count: n})
	p.scores += s.scoreRows(n)
	p.hidden += s.hiddenRows(n)
}

// compose builds a step from parts and reports whether it has any. It leaves out sequences that
// were cancelled or ended since the round was planned. It changes no sequence, so a step that the
// engine refuses needs no rollback.
//
// The step number is assigned under the inbox lock, which Cancel takes too. A cancellation
// therefore either is visible here, or knows the number of the last step that may contain the
// sequence.
func (l *Loop) compose(parts []part) bool {
	p := &l.plan
	p.reset(len(l.slots))
	l.inbox.Lock()
	defer l.inbox.Unlock()
	for _, part := range parts {
		if !part.seq.ended && !part.seq.stream.cancelled.Load() {
			p.add(part.seq, part.count)
		}
	}
	if len(p.next.parts) == 0 {
		return false
	}
	l.inbox.submitted++
	p.next.number = l.inbox.submitted
	return true
}

// reset empties the step and prepares its flight.
func (p *plan) reset(slots int) {
	p.step.PreOps, p.step.Segments = append(p.step.PreOps[:0], p.moves...), p.step.Segments[:0]
	p.step.Samples, p.step.Scores, p.step.Hidden = p.step.Samples[:0], p.step.Scores[:0], p.step.Hidden[:0]
	p.params = slices.Grow(p.params[:0], slots) // the step points into it: it must not grow later
	if p.next == nil {
		p.next = &flight{}
		if n := len(p.spare); n > 0 {
			p.next, p.spare = p.spare[n-1], p.spare[:n-1]
		}
	}
	*p.next = flight{parts: p.next.parts[:0]}
}

// add appends the next n tokens of s to the step.
func (p *plan) add(s *sequence, n int) {
	if s.fresh {
		p.params = append(p.params, s.request.Params)
		p.step.PreOps = append(p.step.PreOps, engine.PreOp{
			Slot: s.slot, SlotGeneration: s.generation, Params: &p.params[len(p.params)-1], History: s.tokens[:s.submitted],
		})
	}
	f := p.next
	class, run := s.next(n)
	part := part{seq: s, count: len(run), decodes: s.decoding()}
	p.addSegments(s, class, run, &part)
	if s.request.PromptTopN >= 0 {
		for i := range run {
			// Position i of the run predicts the prompt token after it. Tokens that were scored
			// before a preemption are not scored again.
			if next := s.submitted + i + 1; next < s.promptLength && next > s.scored {
				p.step.Scores = append(p.step.Scores, engine.ScoreRow{
					TokenIndex: int32(f.tokens + i), Target: s.tokens[next], TopN: int32(s.request.PromptTopN),
				})
				part.scored++
			}
		}
	}
	if s.submitted+len(run) == s.promptLength {
		for _, id := range s.request.Choices {
			p.step.Scores = append(p.step.Scores, engine.ScoreRow{TokenIndex: int32(f.tokens + len(run) - 1), Target: id})
			part.scored++
		}
	}
	for i := range run {
		if s.wantsHidden(s.submitted + i) {
			p.step.Hidden = append(p.step.Hidden, int32(f.tokens+i))
			part.pooled++
		}
	}
	f.hidden += part.pooled
	if s.submitted+len(run) == s.length() && s.length()-s.promptLength < s.request.MaxTokens {
		p.step.Samples = append(p.step.Samples, engine.SampleRow{
			TokenIndex: int32(f.tokens + len(run) - 1), Slot: s.slot, SlotGeneration: s.generation,
			Position: int32(s.length()), MaskLate: !s.guide.Free(),
		})
		part.sampled = true
		if !s.guide.Free() {
			f.guided++
		}
	}
	f.tokens += len(run)
	if part.decodes {
		f.decode += len(run)
	}
	f.parts = append(f.parts, part)
}
