package batch

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// mostPassed is how many waiting sequences that wait for a prefix a round passes over: looking at one costs a look into the prefix
// cache. Those whose readers must catch up first cost nothing and do not count, or enough of them would keep out all others.
const mostPassed = 256

// admit gives places to waiting sequences in the order of the queue: by priority, then so that tenants share alike, then by age.
// Passed over are those whose readers must catch up first, and those who wait for somebody to compute their prefix; the first of
// the others that does not fit ends the round, so that it gets what comes free. Nobody is admitted while a running sequence waits
// for the blocks of a departing one.
func (l *Loop) admit(now time.Time) {
	for !l.short {
		s := l.candidate()
		if s == nil {
			return
		}
		if slot := slices.Index(l.slots, nil); slot >= 0 && l.place(s, int32(slot), now) {
			continue
		}
		if !l.makeRoom(s) {
			l.share(now)
			return
		}
	}
}

// candidate is the waiting sequence that gets the next place; nil: none is to have one.
func (l *Loop) candidate() *sequence {
	passed := 0
	s, _ := l.queue.Next(func(s *sequence) bool {
		switch {
		case s.full():
			return true
		case passed == mostPassed || !l.awaits(s):
			return false
		}
		passed++
		return true
	})
	if passed == mostPassed {
		s = nil
	}
	if g := l.guest; g != nil && (s == nil || g.request.Priority >= s.request.Priority) && !g.full() && !l.awaits(g) {
		return g
	}
	return s
}

// makeRoom takes something from others for a sequence that found no slot or too few blocks. False: nothing is to be had at once.
func (l *Loop) makeRoom(s *sequence) bool {
	if slices.Contains(l.slots, nil) && l.forgetPrompt(s.family) {
		return true
	}
	if len(l.departing) > 0 {
		return false // a slot and blocks come with the next step that ends
	}
	if len(l.running) == 0 {
		return l.forgetPrompt(nil) // its own family's
	}
	if !l.outranks(s) {
		return false
	}
	victim := l.running[len(l.running)-1]
	l.preempt(victim)
	return victim.slot < 0
}

// outranks says whether s has enough once those of lower priority have gone: nobody goes in vain.
func (l *Loop) outranks(s *sequence) bool {
	lower, blocks, need := 0, l.cache.Free(), l.cache.BlocksFor(len(s.tokens))
	for _, other := range l.running {
		if other.request.Priority < s.request.Priority {
			lower++
			blocks += len(other.table.Blocks)
		}
	}
	if len(l.running) > lower {
		need++ // see place
	}
	return lower > 0 && blocks >= need
}

// place gives a waiting sequence a slot and blocks for all of its tokens that are known, so that the next one sees what is really
// free. Beside others, one block more must be free: a sequence preempted for want of a block would want it again at once. False:
// too few blocks are free, and nothing has changed.
func (l *Loop) place(s *sequence, slot int32, now time.Time) bool {
	lent := l.lent(s)
	t, have, move, ok := l.source(s)
	if !ok {
		return false
	}
	need := l.cache.BlocksFor(len(s.tokens)) - len(t.Blocks)
	if len(l.running) > 0 {
		need++
	}
	if need > l.cache.Free() {
		l.release(t)
		return false
	}
	l.cache.Grow(t, len(s.tokens))
	if move != nil {
		l.plan.moves = append(l.plan.moves, *move)
	}
	found := have
	have = l.swapIn(s, t, have)

	l.queue.Remove(s)
	l.occupy(s.request.Tenant)
	if l.guest == s {
		l.guest = nil
	}
	at, _ := slices.BinarySearchFunc(l.running, s, byUrgency)
	l.running = slices.Insert(l.running, at, s)
	l.generations[slot]++
	l.slots[slot] = s
	s.slot, s.generation, s.fresh = slot, l.generations[slot], true
	s.table, s.submitted, s.computed = t, have, have
	l.lead(s)
	if !s.request.Bypass {
		l.cache.Name(t, s.keys())
		l.cache.Claim(t, s.root(), s.ids())
	}
	if s.started.IsZero() {
		l.begin(s, found, lent, now)
	}
	return true
}

// begin notes what a sequence found when it got its first place. Of a family, all have from the prefix cache what its leader had.
func (l *Loop) begin(s *sequence, found int, lent bool, now time.Time) {
	s.started, s.charged = now, len(s.tokens)
	l.gather.arrived()
	l.queue.Charge(s.class(), s.charged-found)
	cached := min(found, s.promptLength)
	if !lent && s.caches() {
		l.counters.lookups.Add(1)
		if cached > 0 {
			l.counters.hits.Add(1)
			l.counters.cachedTokens.Add(uint64(cached))
		}
	}
	if f := s.family; f != nil {
		if f.leader == s {
			f.cached = cached
		}
		cached, f.began = f.cached, true
		l.came(f)
	}
	s.stream.cached.Store(int64(cached))
	s.stream.placed(now.Sub(s.arrived))
	if o := l.cfg.Observer; o != nil {
		o.Admitted(now.Sub(s.arrived), s.promptLength, cached)
	}
}

// lead makes s the one that computes its family's prompt, if nobody does and it is not there.
func (l *Loop) lead(s *sequence) {
	if f := s.family; f != nil && f.prompt == nil && f.leader == nil && s.computed < s.promptLength {
		f.leader = s
	}
}

func (s *sequence) keys() []kvcache.Key {
	keys := make([]kvcache.Key, len(s.request.Keys))
	for i, k := range s.request.Keys {
		keys[i] = kvcache.Key(k)
	}
	return keys
}

// swapIn adds the moves that bring back what of s waits in host memory, if that goes on where its table ends; otherwise, or if no
// step has taken it out yet, it is given up. It gives how many of its first positions are there then.
func (l *Loop) swapIn(s *sequence, t *kvcache.Table, have int) int {
	w, first := s.swap, have/l.cfg.Runner.BlockSize
	if w == nil || w.going || first < w.first || have >= w.tokens || !l.movable(len(w.blocks)) {
		l.discard(s)
		return have
	}
	s.swap = nil
	l.plan.returning = append(l.plan.returning, w.blocks...)
	for i, b := range w.blocks {
		if at := w.first + i; at >= first {
			l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockIn, Src: b, Dst: t.Blocks[at]})
		}
	}
	return w.tokens
}
