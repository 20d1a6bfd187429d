package batch

import (
	"slices"
	"time"
)

// choose plans the round's work: every decoding sequence first, then prefill chunks in the order of inTurn, unless these wait for
// others to come (gather), or for sequences that decode to keep their pace (slowdown). False: there is nothing to do.
// It takes blocks, and preempts sequences for want of them; what it takes for a part that does not come to run stays with
// its sequence and is used by the next round, so that a round may be planned again at any time.
func (l *Loop) choose(now time.Time) bool {
	p := &l.plan
	p.chosen, p.scores = p.chosen[:0], 0
	l.short = false
	tokens := 0
	// The list changes when a sequence is preempted, so a copy of it is walked.
	for _, s := range slices.Clone(l.running) {
		if l.plannable(s) && s.decoding() && tokens < l.cfg.Runner.MaxBatchedTokens && l.reserve(s, 1) {
			p.take(s, 1)
			tokens++
		}
	}
	prompts := l.inTurn()
	if l.gathers(now, prompts) {
		l.holdBack(0, now)
		return true
	}
	l.gather.release()
	budget := l.chunk(tokens, prompts)
	priority, guarded := l.guarded(prompts)
	heldBack := 0
	for _, s := range prompts {
		if !l.plannable(s) {
			continue
		}
		if guarded && s.request.Priority <= priority && !l.modest(s.request.Tenant) {
			heldBack++
			continue
		}
		if budget <= 0 {
			if !guarded {
				break
			}
			continue // who is held back behind it counts
		}
		_, run := s.next(l.scoreLimit(s, budget))
		if len(run) > 0 && l.reserve(s, len(run)) {
			p.take(s, len(run))
			l.turn(s.request.Tenant)
			budget -= len(run)
		}
	}
	l.holdBack(heldBack, now)
	return len(p.chosen) > 0
}

// plannable says whether a sequence may be in the round: it has its place and something to compute, and its reader has room.
func (l *Loop) plannable(s *sequence) bool {
	if s.slot < 0 || s.leaving || s.over || s.exhausted() {
		return false
	}
	s.paused = s.full()
	return !s.paused
}

// chunk is how many tokens of prompts a step may have beside those of sequences that decode.
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
		return l.shared.chunk(waiting, most)
	}
	return l.alone.chunk(waiting, most)
}

// scoreLimit keeps a chunk within the score rows left in the step.
func (l *Loop) scoreLimit(s *sequence, budget int) int {
	if s.request.PromptTopN < 0 || s.submitted >= s.promptLength {
		return budget
	}
	return min(budget, l.cfg.Runner.MaxScoreRows-l.plan.scores)
}

// reserve makes the blocks of s cover n more tokens. While too few are free, prompts that families keep go first, and then the
// running sequence, last in urgency, that is not chosen yet is preempted: s itself if it is the last, and then the answer is
// false. It also is while a sequence departs, whose blocks come when its step in flight has ended: nobody else has to go before
// that is known not to be enough.
func (l *Loop) reserve(s *sequence, n int) bool {
	for !l.cache.Grow(s.table, s.submitted+n) {
		if l.forgetPrompt(nil) {
			continue
		}
		if len(l.departing) > 0 {
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
	return true
}

// last is the running sequence, last in urgency, that has no part in the round being planned.
func (l *Loop) last() *sequence {
	for _, s := range slices.Backward(l.running) {
		if !slices.ContainsFunc(l.plan.chosen, func(p part) bool { return p.seq == s }) {
			return s
		}
	}
	return nil
}
