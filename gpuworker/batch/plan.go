package batch

import (
	"slices"
	"time"
)

// choose plans the tokens of the next step: one for every decoding sequence, with the tokens that
// are forced after it, then prefill chunks in the order of prefillOrder. Prompts may be held back by
// the coalescer or by the tenant guard. It returns false if there is nothing to compute.
//
// choose allocates blocks, and preempts sequences if blocks run out. A block that is allocated for
// a part that is not submitted stays with its sequence, and the next round uses it. Planning a
// round again is therefore always safe.
func (l *Loop) choose(now time.Time) bool {
	p := &l.plan
	p.chosen, p.scores, p.hidden, p.maskSteps = p.chosen[:0], 0, 0, l.cfg.masks.inlineSteps
	l.short = false
	tokens := 0
	// reserve may preempt, which changes l.running: iterate over a copy.
	running, forced := slices.Clone(l.running), l.mixed.tokens
	for i, s := range running {
		if !l.plannable(s) || !s.decoding() || tokens >= l.cfg.Runner.MaxBatchedTokens {
			continue
		}
		// Each sequence after it has room for a token. Forced tokens lengthen the step as prefill does.
		room := l.cfg.Runner.MaxBatchedTokens - tokens - (len(running) - i - 1)
		n := max(1, min(s.length()-s.submitted, 1+forced, room))
		if l.reserve(s, n) {
			l.planStates(s, n)
			p.schedule(s, n)
			tokens += n
			forced -= n - 1
		}
	}
	prompts := l.prefillOrder()
	if l.delayPrefill(now, prompts) {
		l.recordHeldBack(0, now)
		return true
	}
	l.coalescer.release()
	budget := l.chunk(tokens, prompts)
	priority, guarded := l.guardedPriority(prompts)
	heldBack := 0
	for _, s := range prompts {
		if !l.plannable(s) {
			continue
		}
		if guarded && s.request.Priority <= priority && !l.underFairShare(s.request.Tenant) {
			heldBack++
			continue
		}
		if budget <= 0 {
			if !guarded {
				break
			}
			continue // only to count the sequences that are held back
		}
		limit := l.windowLimit(s, l.rowLimit(s, budget))
		if size := l.cfg.Runner.BlockSize; s.recalling {
			limit = min(limit, size-s.submitted%size)
		}
		if l.cfg.WholeTexts && limit < s.promptLength {
			if len(p.chosen) > 0 {
				continue
			}
			limit = s.promptLength // the first text of a step is computed whatever its length is
		}
		_, run := s.next(limit)
		if len(run) > 0 && l.reserve(s, len(run)) {
			l.planStates(s, len(run))
			p.schedule(s, len(run))
			l.markServed(s.request.Tenant)
			budget -= len(run)
		}
	}
	l.recordHeldBack(heldBack, now)
	return len(p.chosen) > 0
}

// plannable reports whether s may be part of the step: it has a slot and uncomputed tokens, and its
// reader's buffer has room.
func (l *Loop) plannable(s *sequence) bool {
	if s.slot < 0 || s.preempted || s.ended || s.complete || s.exhausted() || s.recalling && s.inFlight > 0 || s.awaitsMask() ||
		l.awaitsMaskForState(s) {
		return false
	}
	s.paused = s.full()
	return !s.paused
}

// chunk returns how many prefill tokens the step may have in addition to its decode tokens.
func (l *Loop) chunk(decode int, prompts []*sequence) int {
	most := l.cfg.Runner.MaxBatchedTokens - decode
	if l.cfg.Chunk > 0 {
		return min(l.cfg.Chunk, most)
	}
	waiting := 0
	for _, s := range prompts {
		if l.plannable(s) {
			waiting += s.length() - s.submitted
		}
	}
	if decode > 0 {
		return l.mixed.chunk(waiting, most)
	}
	return l.prefillOnly.chunk(waiting, most)
}

// rowLimit limits a chunk to the score rows and hidden rows that are left in the step.
func (l *Loop) rowLimit(s *sequence, budget int) int {
	r := &s.request
	if s.submitted >= s.promptLength {
		return budget
	}
	scores, hidden := l.cfg.Runner.MaxScoreRows-l.plan.scores, l.cfg.Runner.MaxHiddenRows-l.plan.hidden
	switch {
	case r.PromptTopN >= 0:
		return min(budget, scores)
	case r.Pool == PoolMean:
		return min(budget, hidden)
	case len(r.Choices) > scores, r.Pool != NoPool && hidden == 0:
		return 0
	}
	return budget
}

// reserve makes the blocks of s cover n more tokens. If too few are free, it drops shared prompts
// of groups first, then preempts the least urgent running sequence that is not in the step yet. If
// that is s itself, reserve returns false. It also returns false while a sequence departs, whose
// blocks come free when its step in flight ends: no other sequence is preempted before that is
// known not to be enough, or while steps in flight will free blocks of the window group.
func (l *Loop) reserve(s *sequence, n int) bool {
	for {
		ok, short := l.grow(s, s.submitted+n)
		if ok {
			l.cache.Overwrite(s.table, s.submitted, s.submitted+n)
			return true
		}
		if !short && l.dropOldestPrompt(nil) {
			continue
		}
		if short || len(l.departing) > 0 {
			l.short = true
			return false
		}
		victim := l.last()
		if victim == nil {
			return false
		}
		l.preempt(victim)
		if victim == s {
			return false
		}
	}
}

// last returns the least urgent running sequence that is not in the step being planned.
func (l *Loop) last() *sequence {
	for _, s := range slices.Backward(l.running) {
		if !slices.ContainsFunc(l.plan.chosen, func(p part) bool { return p.seq == s }) {
			return s
		}
	}
	return nil
}
