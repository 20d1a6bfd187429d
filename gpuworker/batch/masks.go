package batch

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// A sequence under a grammar is planned like any other, two steps ahead. Its mask for step n+1
// follows from the token that step n samples, so the step is submitted without it
// (engine.SampleRow.MaskLate), and the mask is made while the device computes everything of the
// step but the samples:
//
//	loop    submit 2 | wait | deliver 1 | masks 2 | submit 3 | wait | deliver 2 | masks 3
//	                v                        v           v                           v
//	device  = step 1 =][==== step 2, forward ====][sample][==== step 3, forward =====][sample]
//
// A step needs the masks of all its rows, and a mask may need a thousand times the work of another.
// So the loop spends a budget on the masks of a step, gives those that are left to the mask pool,
// and waits for them while the forward pass lasts (maskLimits). A row without a mask by then is
// held: it samples under a mask of ones, the sample is dropped, and the row is computed again once
// its mask is there. For its next masks that sequence is slow: it is planned with its mask ready,
// and so in every second step at most. Which rows are held depends on the clock. The tokens do not:
// the row that is computed again has the same bits.
//
//	slow    sampled in 1 |---- mask in the pool ----| sampled in 7
//	others  sampled in 1, 2, 3, 4, 5, 6, 7
//
// The state of the grammar is a value that follows from the ids alone. So a preempted sequence
// keeps it, a resumed one computes it from the ids that it brings, and a group shares it.
//
// If layers carry a state, no row can be computed twice. Each sequence under a grammar is then
// planned with its mask ready, and one budget of a round pays for the masks that the loop makes
// before it plans (awaitsMaskForState).

// maskLimits bound the masks of a step.
type maskLimits struct {
	// inlineSteps are the steps of walks that the loop makes itself: a mask that is known costs less
	// than passing it to another goroutine.
	inlineSteps int
	// A step may wait for masks for half of the last step, within these bounds.
	minPatience, maxPatience time.Duration
}

// usualMasks has about half a millisecond of steps.
var usualMasks = maskLimits{inlineSteps: 1 << 17, minPatience: time.Millisecond, maxPatience: 25 * time.Millisecond}

const (
	// slowMasks is for how many cheap masks in a row a sequence stays slow.
	slowMasks = 4
	// cheapSteps are the steps of a mask that is cheap.
	cheapSteps = 1 << 15
)

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

// masking is what a sequence has under a grammar besides its state.
type masking struct {
	job   *maskJob // of the mask after all tokens; nil: not begun
	mask  []uint32 // of the job, or of the last row
	held  bool     // a step in flight samples without a mask
	slow  int      // masks until it is planned without waiting for them
	spent int      // steps of recent masks, halved with each
}

// maskJob returns the job of the mask after the sequence's tokens.
func (s *sequence) maskJob() *maskJob {
	m := &s.masking
	if m.job == nil {
		if words := s.guide.Words(); len(m.mask) != words {
			m.mask = make([]uint32, words)
		}
		m.job = &maskJob{walk: s.guide.Walk(s.unfollowed, m.mask), spent: m.spent}
	}
	return m.job
}

// awaitsMask reports whether the sequence must not be planned before it has a mask.
func (s *sequence) awaitsMask() bool {
	m := &s.masking
	return m.held || m.slow > 0 && s.sampling > 0 || m.job != nil && m.job.pooled && !m.job.done.Load()
}

// awaitsMaskForState reports whether a sequence under a grammar must not be planned because its
// mask is not done. If layers carry a state, no row can be held, since its token cannot be computed
// again.
func (l *Loop) awaitsMaskForState(s *sequence) bool {
	if !l.cfg.States || s.guide.Free() {
		return false
	}
	if s.sampling > 0 {
		return true
	}
	j := s.maskJob()
	if j.done.Load() || !j.pooled && j.try(&l.plan.maskSteps) {
		return false
	}
	if !j.pooled {
		l.pool.add(j)
	}
	return true
}

// prepareMask begins the mask of a slow sequence that got a token.
func (l *Loop) prepareMask(s *sequence) {
	if s.masking.slow > 0 && !s.guide.Free() {
		l.pool.add(s.maskJob())
	}
}

// sendMasks sends the masks of the newest step, if it waits for some and no earlier step is in
// flight, whose samples they may depend on. It must be called after each submission and each
// delivery, because neither the step nor the one after it continues before. An error ends the loop:
// the step would never end.
func (l *Loop) sendMasks() error {
	if len(l.flights) != 1 || l.flights[0].guided == 0 {
		return nil
	}
	f := l.flights[0]
	f.guided = 0
	l.makeMasks(f)
	l.maskRows = l.maskRows[:0]
	steps := forcedSteps
	for i := range f.parts {
		if p := &f.parts[i]; p.sampled && !p.seq.guide.Free() {
			l.maskRows = append(l.maskRows, l.maskRow(p, &steps))
		}
	}
	if err := l.masker.Masks(l.maskRows); err != nil {
		return fmt.Errorf("the engine does not take the masks of a step: %w", err)
	}
	return nil
}

// makeMasks makes the masks of a step, or as many as its patience allows.
func (l *Loop) makeMasks(f *flight) {
	steps, left := l.cfg.masks.inlineSteps, l.maskJobs[:0]
	for _, p := range f.parts {
		if !p.sampled || p.seq.guide.Free() || p.seq.ended || p.seq.stream.cancelled.Load() {
			continue
		}
		j := p.seq.maskJob()
		switch {
		case j.done.Load():
		case !j.pooled && j.try(&steps):
		default:
			left = append(left, j)
			l.pool.add(j)
		}
	}
	l.pool.await(left, min(max(l.lastStep/2, l.cfg.masks.minPatience), l.cfg.masks.maxPatience))
	clear(left)
	l.maskJobs = left[:0]
}

// maskRow returns the mask of a part, or ones if its sample is dropped. steps are those that chains
// of forced tokens may make.
func (l *Loop) maskRow(p *part, steps *int) []uint32 {
	s := p.seq
	m := &s.masking
	if s.ended || s.stream.cancelled.Load() {
		return l.ones(s.guide.Words())
	}
	if !m.job.done.Load() {
		m.held, p.held, m.slow = true, true, slowMasks
		return l.ones(s.guide.Words())
	}
	state, err := m.job.walk.Result()
	if err != nil {
		s.stream.end(fmt.Errorf("%w: at position %d: %w", ErrGuide, len(s.tokens), err))
		l.retire(s)
		return l.ones(s.guide.Words())
	}
	switch {
	case m.slow > 0 && m.job.walk.Steps() > cheapSteps:
		m.slow = slowMasks
	case m.slow > 0:
		m.slow--
	}
	id, only := m.job.walk.Only()
	s.followed(state)
	if l.force(p, id, only, steps) {
		return l.ones(s.guide.Words())
	}
	return m.mask
}

// ones returns a mask of ones. No caller may change it.
func (l *Loop) ones(words int) []uint32 {
	if len(l.maskOnes) != words {
		l.maskOnes = make([]uint32, words)
		for i := range l.maskOnes {
			l.maskOnes[i] = math.MaxUint32
		}
	}
	return l.maskOnes
}

// release takes the sample from a held part: its last token is computed again.
func (p *part) release() {
	p.held, p.seq.masking.held = false, false
	p.seq.computed--
	p.seq.submitted--
}
