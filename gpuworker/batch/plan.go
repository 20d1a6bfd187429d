package batch

import (
	"fmt"
	"slices"
	"time"
)

// reap takes out cancelled sequences and readers that stalled for too long, and takes their places from readers that
// keep others waiting: those are computed again, to the same bits, once their buffers have room.
func (l *Loop) reap(now time.Time) {
	othersWait := slices.ContainsFunc(l.waiting, func(s *sequence) bool { return !s.stream.full() })
	keep := func(list []*sequence) []*sequence {
		return slices.DeleteFunc(list, func(s *sequence) bool {
			if s.stream.cancelled.Load() {
				l.counters.cancelled.Add(1)
				l.drop(s)
				s.stream.end(ErrCancelled)
				return true
			}
			if s.stalled(now, othersWait) > l.cfg.StallLimit {
				l.drop(s)
				s.stream.end(fmt.Errorf("%w: it left %d events unread for %v while others waited",
					ErrSlowReader, bufferLimit, l.cfg.StallLimit))
				return true
			}
			return false
		})
	}
	l.waiting = keep(l.waiting)
	l.running = keep(l.running)
	for _, s := range slices.Clone(l.running) {
		if s.stalled(now, othersWait) > l.cfg.YieldAfter {
			l.preempt(s)
		}
	}
}

// stalled is how long the reader has kept the sequence paused: while others wait for what it holds, or after it had to
// give that up.
func (s *sequence) stalled(now time.Time, othersWait bool) time.Duration {
	if s.slot >= 0 && !othersWait || !s.stream.full() {
		s.stalledSince = time.Time{}
		return 0
	}
	if s.stalledSince.IsZero() {
		s.stalledSince = now
	}
	return now.Sub(s.stalledSince)
}

// drop gives back a sequence's slot and blocks. No step is in flight when it is called.
func (l *Loop) drop(s *sequence) {
	if err := l.pool.Release(s.blocks); err != nil {
		l.logger.Error("released a block twice", "error", err)
	}
	if s.slot >= 0 {
		l.slots[s.slot] = nil
	}
	s.rewind()
}

// admit gives slots to waiting sequences by age, as long as all that they have to compute fits the free blocks; those
// whose readers must catch up first are passed over. Beside others, one block more must be free: a sequence preempted for
// want of a block would want it again at once.
func (l *Loop) admit() {
	for {
		at := slices.IndexFunc(l.waiting, func(s *sequence) bool { return !s.stream.full() })
		if at < 0 {
			return
		}
		s := l.waiting[at]
		slot, need := slices.Index(l.slots, nil), l.pool.BlocksFor(len(s.tokens))
		if len(l.running) > 0 {
			need++
		}
		if slot < 0 || need > l.pool.Free() {
			return
		}
		l.waiting = slices.Delete(l.waiting, at, at+1)
		l.generations[slot]++
		s.slot, s.generation, s.fresh = int32(slot), l.generations[slot], true
		if s.started.IsZero() {
			s.started = time.Now()
		}
		l.slots[slot] = s
		at, _ = slices.BinarySearchFunc(l.running, s, byAge)
		l.running = slices.Insert(l.running, at, s)
		// Blocks are taken at once so that the next waiting sequence sees what is really free.
		s.blocks, _ = l.pool.Grow(s.blocks, len(s.tokens))
	}
}

func byAge(a, b *sequence) int {
	switch {
	case a.age < b.age:
		return -1
	case a.age > b.age:
		return 1
	}
	return 0
}

// choose plans the round's work: every decoding sequence first, then prefill chunks by age. False: there is nothing to do.
// It takes blocks, and preempts sequences for want of them; what it takes for a part that does not come to run stays with
// its sequence and is used by the next round, so that a round may be planned again at any time.
func (l *Loop) choose() bool {
	p := &l.plan
	p.chosen, p.scores = p.chosen[:0], 0
	tokens := 0
	// The list changes when a sequence is preempted, so it is walked by age.
	for _, s := range slices.Clone(l.running) {
		if s.slot >= 0 && s.decoding() && !s.stream.full() && l.reserve(s, 1) {
			p.take(s, 1)
			tokens++
		}
	}
	budget := min(l.chunk(tokens > 0), l.cfg.Runner.MaxBatchedTokens-tokens)
	for _, s := range slices.Clone(l.running) {
		if budget <= 0 {
			break
		}
		if s.slot < 0 || s.decoding() || s.stream.full() {
			continue
		}
		_, run := s.next(l.scoreLimit(s, budget))
		if len(run) > 0 && l.reserve(s, len(run)) {
			p.take(s, len(run))
			budget -= len(run)
		}
	}
	return len(p.chosen) > 0
}

// chunk is how many prefill tokens a step may have, in which sequences decode or none does.
func (l *Loop) chunk(shared bool) int {
	switch {
	case l.cfg.Chunk > 0:
		return l.cfg.Chunk
	case shared:
		return l.shared.tokens
	}
	return l.alone.tokens
}

// scoreLimit keeps a chunk within the score rows left in the step.
func (l *Loop) scoreLimit(s *sequence, budget int) int {
	if s.request.PromptTopN < 0 || s.computed >= s.promptLength {
		return budget
	}
	return min(budget, l.cfg.Runner.MaxScoreRows-l.plan.scores)
}

// reserve makes the blocks of s cover n more tokens, preempting the youngest sequence not chosen yet while too few are
// free: s itself if it is the youngest, and then the answer is false.
func (l *Loop) reserve(s *sequence, n int) bool {
	for {
		var ok bool
		if s.blocks, ok = l.pool.Grow(s.blocks, s.computed+n); ok {
			return true
		}
		victim := l.youngest()
		if victim == nil {
			return false
		}
		l.preempt(victim)
		if victim == s {
			return false
		}
	}
}

// youngest is the youngest running sequence that has no part in the round being planned.
func (l *Loop) youngest() *sequence {
	for _, s := range slices.Backward(l.running) {
		if !slices.ContainsFunc(l.plan.chosen, func(p part) bool { return p.seq == s }) {
			return s
		}
	}
	return nil
}

// preempt takes slot and blocks from a sequence and queues it by its age, to be computed again.
func (l *Loop) preempt(s *sequence) {
	l.counters.preempted.Add(1)
	l.retire(s)
	at, _ := slices.BinarySearchFunc(l.waiting, s, byAge)
	l.waiting = slices.Insert(l.waiting, at, s)
}

// retire takes a sequence out of the batch.
func (l *Loop) retire(s *sequence) {
	l.drop(s)
	l.running = slices.DeleteFunc(l.running, func(r *sequence) bool { return r == s })
}
