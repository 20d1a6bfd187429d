package batch

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// maxPassed bounds how many sequences that wait for a prefix are skipped in a round, because each
// costs a lookup in the prefix cache. Sequences whose readers must catch up are skipped for free
// and do not count: otherwise enough slow consumers would block the queue for everybody else.
const maxPassed = 256

// admit gives slots to waiting sequences in queue order: by priority, then by fair share of the
// tenants, then by age. It skips sequences whose readers must catch up and sequences whose prefix
// is being computed. The first of the others that does not fit ends the round. A smaller one must
// not overtake it, or a large request could starve. While a running sequence waits for the blocks
// of a departing one, nothing is admitted.
func (l *Loop) admit(now time.Time) {
	for !l.short {
		s := l.candidate()
		if s == nil {
			return
		}
		if slot := slices.Index(l.slots, nil); slot >= 0 && l.assignSlot(s, int32(slot), now) {
			continue
		}
		if !l.makeRoom(s) {
			l.share(now)
			return
		}
	}
}

// candidate returns the waiting sequence that gets the next slot, or nil.
func (l *Loop) candidate() *sequence {
	passed := 0
	s, _ := l.queue.Next(func(s *sequence) bool {
		switch {
		case s.full():
			return true
		case passed == maxPassed || !l.awaitsPrefix(s):
			return false
		}
		passed++
		return true
	})
	if passed == maxPassed {
		s = nil
	}
	if g := l.reservedFor; g != nil && (s == nil || g.request.Priority >= s.request.Priority) && !g.full() && !l.awaitsPrefix(g) {
		return g
	}
	return s
}

// makeRoom frees a slot or blocks for s. It returns false if nothing can be freed now.
func (l *Loop) makeRoom(s *sequence) bool {
	if slices.Contains(l.slots, nil) && l.dropOldestPrompt(s.group) {
		return true
	}
	if len(l.departing) > 0 {
		return false // a slot and blocks come free when a step in flight ends
	}
	if len(l.running) == 0 {
		return l.dropOldestPrompt(nil) // the prompt of its own group
	}
	if !l.outranks(s) {
		return false
	}
	victim := l.running[len(l.running)-1]
	l.preempt(victim)
	return victim.slot < 0
}

// outranks reports whether s fits once all running sequences of lower priority are preempted.
// makeRoom checks it first so that no sequence is preempted in vain.
func (l *Loop) outranks(s *sequence) bool {
	lower, blocks, need := 0, l.cache.Free(), l.cache.BlocksFor(len(s.tokens))
	windows, needWindows := l.cache.FreeWindow(), l.needsWindow(s, &kvcache.Table{}, 0)
	for _, other := range l.running {
		if other.request.Priority < s.request.Priority {
			lower++
			blocks += len(other.table.Blocks)
			windows += other.table.WindowBlocks()
		}
	}
	if len(l.running) > lower {
		need++ // the spare block of assignSlot
		needWindows++
	}
	return lower > 0 && blocks >= need && (l.cfg.Window == 0 || windows >= needWindows)
}

// assignSlot gives s a slot and blocks for all of its known tokens. It allocates them at once, so
// that the next candidate sees the blocks that are really free. If other sequences run, one more
// block must be free: a sequence that was preempted for want of a block would otherwise be admitted
// and run out again at once. It returns false, and changes nothing, if too few blocks are free.
func (l *Loop) assignSlot(s *sequence, slot int32, now time.Time) bool {
	fromGroup := l.canSharePrompt(s)
	t, have, moves, ok := l.startingTable(s)
	if !ok {
		return false
	}
	start := have
	if l.canSwapIn(s, have, len(moves)) {
		start, s.recalling = s.swap.tokens, false
	}
	need, needWindow := l.cache.BlocksFor(len(s.tokens))-len(t.Blocks), l.needsWindow(s, t, start)
	if len(l.running) > 0 {
		need++
		needWindow += min(needWindow, 1)
	}
	if need > l.cache.Free() || needWindow > l.cache.FreeWindow() {
		l.giveUpStates(s)
		l.release(t)
		return false
	}
	l.cache.Grow(t, len(s.tokens))
	if l.cfg.Window > 0 {
		l.cache.GrowWindow(t, l.windowEnd(s, start))
	}
	l.plan.moves = append(l.plan.moves, moves...)
	found := have
	if start > have {
		l.swapIn(s, t, have, slot)
		have = start
	} else {
		l.discard(s)
	}

	l.queue.Remove(s)
	l.occupy(s.request.Tenant)
	if l.reservedFor == s {
		l.reservedFor = nil
	}
	position, _ := slices.BinarySearchFunc(l.running, s, byUrgency)
	l.running = slices.Insert(l.running, position, s)
	l.generations[slot]++
	l.slots[slot] = s
	s.slot, s.generation, s.fresh = slot, l.generations[slot], true
	s.table, s.submitted, s.computed = t, have, have
	l.electLeader(s)
	l.announce(s)
	if s.started.IsZero() {
		l.recordStart(s, found, fromGroup, now)
	}
	return true
}

// announce names the prefixes of s, and claims those that it will compute.
func (l *Loop) announce(s *sequence) {
	if s.request.Bypass {
		return
	}
	if !l.cfg.States || l.cfg.Runner.SavedStates > 0 { // else no request can start with a prefix
		l.cache.Name(s.table, s.keys())
	}
	l.cache.Claim(s.table, s.root(), s.ids()[:s.shared()])
}

// recordStart records where a sequence starts when it gets its first slot. All continuations of a group
// report the prefix hit of their leader, because the leader computed the prompt for all of them.
func (l *Loop) recordStart(s *sequence, found int, fromGroup bool, now time.Time) {
	s.started, s.charged = now, len(s.tokens)
	l.coalescer.arrived()
	l.queue.Charge(s.class(), s.charged-found)
	cached := min(found, s.promptLength)
	if !fromGroup && s.caches() {
		l.counters.lookups.Add(1)
		if s.hit = cached > 0; s.hit {
			l.counters.hits.Add(1)
			l.counters.cachedTokens.Add(uint64(cached))
		}
	}
	if g := s.group; g != nil {
		if g.leader == s {
			g.cached = cached
		}
		cached, g.started = g.cached, true
		l.countMember(g)
	}
	s.stream.cached.Store(int64(cached))
	s.stream.setQueueTime(now.Sub(s.arrived))
	if o := l.cfg.Observer; o != nil {
		o.Admitted(now.Sub(s.arrived), s.promptLength, cached)
	}
}

func (s *sequence) keys() []kvcache.Key {
	keys := make([]kvcache.Key, len(s.request.Keys))
	for i, k := range s.request.Keys {
		keys[i] = kvcache.Key(k)
	}
	return keys
}

// canSwapIn reports whether blocks of s in host memory continue where a table of `have` positions
// ends, whether the moves out are submitted, and whether the next step has room for the moves in
// after `before` other ones.
func (l *Loop) canSwapIn(s *sequence, have, before int) bool {
	w := s.swap
	if w == nil {
		return false
	}
	n := len(w.blocks) + len(w.windows) + 1
	if l.cfg.Tier.Blocks > 0 {
		n = 2*n + 2 // each block that comes in may send one out, and of the window group one more
	}
	return !w.pending && have/l.cfg.Runner.BlockSize >= w.first && have < w.tokens && l.movable(before+n)
}

// swapIn plans the moves that bring blocks of s back from host memory, after its first `have`
// positions, so that all positions of the copy are on the device. canSwapIn must have returned
// true. The state goes to the slot's own.
func (l *Loop) swapIn(s *sequence, t *kvcache.Table, have int, slot int32) {
	w, first := s.swap, have/l.cfg.Runner.BlockSize
	s.swap = nil
	l.cache.Overwrite(t, have, w.tokens)
	l.plan.returning = append(l.plan.returning, w.blocks...)
	l.plan.returningWindows = append(l.plan.returningWindows, w.windows...)
	for i, b := range w.blocks {
		if block := w.first + i; block >= first {
			l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockIn, Src: b, Dst: t.Blocks[block]})
		}
	}
	for i, b := range w.windows {
		if block := w.firstWindow + i; block >= first {
			l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.BlockIn, Src: b, Dst: t.Window[block], Window: true})
		}
	}
	if l.cfg.States {
		l.plan.returningStates = append(l.plan.returningStates, w.state)
		l.plan.moves = append(l.plan.moves, engine.PreOp{Kind: engine.StateIn, Slot: slot, Src: w.state})
		l.giveUpStates(s)
		s.lastState = w.tokens
	}
}
