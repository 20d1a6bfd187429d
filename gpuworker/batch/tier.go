package batch

import (
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/kvcache"
)

// The host tier of the prefix cache (Config.Tier) has blocks and states that the device evicted, in
// host memory. Their copies are moves of steps, as those of swapped sequences are, so that no
// sequence waits for them alone: a copy out goes with the step that overwrites the block, and
// copies in go with the first step of the sequence that starts with them, or with several if one
// has no room for them.
//
// A move of the tier may outlive the sequence for which it was planned, because the cache counts on
// it from then on. So moves stay in the plan until a step is accepted, and only copies out that the
// engine has no memory for are taken back (cancelTierOuts).

// Tier sizes the host tier. Its blocks, window blocks and states are the last ones of
// Runner.HostBlocks, Runner.HostWindowBlocks and Runner.HostStates. The zero value has no tier.
type Tier struct{ Blocks, WindowBlocks, States int }

// usualRecall is how many tokens a sequence must save by copies from host memory. Fewer are
// computed: the fixed cost of a step with copies is then as large.
const usualRecall = 64

// tierMove adds a copy of the tier to the next step.
func (l *Loop) tierMove(m kvcache.Copy) {
	op := engine.PreOp{Kind: engine.BlockOut, Src: m.Src, Dst: m.Dst, Window: m.Kind == kvcache.WindowBlock}
	switch {
	case m.Kind == kvcache.State && m.In:
		op.Kind = engine.StateIn
	case m.Kind == kvcache.State:
		op.Kind = engine.StateOut
	case m.In:
		op.Kind = engine.BlockIn
	}
	l.plan.moves = append(l.plan.moves, op)
}

// roomForOuts reports whether the next step can have another copy out to the tier. They leave a
// sixteenth of a step's moves to the copies of swaps and forks.
func (l *Loop) roomForOuts() bool { return l.movable(l.mostMoves()/16 + 1) }

// roomForIns is how many copies in the next step can have after n moves: each block that comes in
// may send one out, and a quarter of a step's moves is left for blocks that its tokens overwrite.
func (l *Loop) roomForIns(n int) int { return (l.mostMoves()*3/4 - n) / 2 }

// recall extends the table of s by content of the host tier, if copying it takes less time than
// computing it. ids are those that s may start with. If the next step has no room for all copies, s
// begins with a part of them and s.recalling is true: see continueRecalls.
func (l *Loop) recall(s *sequence, t *kvcache.Table, ids []int32) {
	have := t.Shared * l.cfg.Runner.BlockSize
	if s.recalling = false; l.cfg.Tier.Blocks == 0 || s.swap != nil && t.Shared >= s.swap.first {
		return // its own copy goes further
	}
	more, ok := l.cache.Longer(t, s.root(), ids)
	if !ok || !l.recallPays(more, more.Tokens-have) || !l.recallFits(s, t, more) {
		return
	}
	part := more
	if room := l.roomForIns(len(l.plan.moves)); more.Copies() > room {
		part = l.cache.Cut(t, more, room)
		s.recalling = l.cache.Cut(t, more, l.roomForIns(0)).Tokens > have
		if !s.recalling && l.movable(2*more.Copies()+1) {
			part = more // it cannot be divided
		}
	}
	if part.Tokens == have {
		return
	}
	state, ok := l.cache.Recall(t, part)
	if !ok {
		s.recalling = false
		return
	}
	if l.cfg.States {
		l.dropState(s.state)
		s.state, s.lastState = state, part.Tokens
	}
	if s.left <= part.Tokens {
		s.left = 0 // nothing went on beyond where s starts
	}
}

// continueRecalls goes on with recalls that a step had no room for. A step must compute something,
// so each part of the copies comes with one block to compute, and the next part when that step has
// ended. Of a prefix of 30 000 blocks:
//
//	step   copies blocks     computes
//	1      0 to 12287        12288
//	2      12289 to 24576    24577
//	3      24578 to 29999    30000 and on, in chunks
func (l *Loop) continueRecalls() {
	for _, s := range l.running {
		if s.recalling && s.inFlight == 0 && s.submitted%l.cfg.Runner.BlockSize == 0 {
			l.continueRecall(s)
		}
	}
}

func (l *Loop) continueRecall(s *sequence) {
	t, before := s.table, s.submitted
	if t.Shared*l.cfg.Runner.BlockSize != before || !s.caches() {
		s.recalling = false // its new blocks are not shared
		return
	}
	l.cache.Truncate(t)
	l.recall(s, t, s.ids()[:s.reusable()+1])
	have := t.Shared * l.cfg.Runner.BlockSize
	// Without enough blocks in a group, s gets them when it is planned.
	l.cache.Grow(t, len(s.tokens))
	if have == before {
		return
	}
	if l.cfg.Window > 0 {
		l.cache.GrowWindow(t, l.windowEnd(s, have))
	}
	l.generations[s.slot]++
	s.generation, s.fresh = l.generations[s.slot], true
	s.submitted, s.computed = have, have
	if s.leads() {
		l.holdPromptState(s)
	}
	l.announce(s)
	if s.preemptions > 0 {
		return // only its first start counts
	}
	if saved := min(have, s.promptLength) - before; saved > 0 {
		l.counters.cachedTokens.Add(uint64(saved))
		if !s.hit {
			s.hit = true
			l.counters.hits.Add(1)
		}
		switch g := s.group; {
		case g == nil:
			s.stream.cached.Add(int64(saved))
		case g.leader == s: // the others report what their leader found
			s.stream.cached.Add(int64(saved))
			g.cached += saved
		}
	}
	l.queue.Refund(s.class(), have-before)
}

// recallPays reports whether copies from host memory take less time than computing tokens.
func (l *Loop) recallPays(more kvcache.Longer, tokens int) bool {
	if tokens < l.cfg.LeastRecall || !l.prefill.known() {
		return false
	}
	return l.duration(more.Blocks, more.WindowBlocks, more.States) < l.prefill.duration(tokens)
}

// recallFits reports whether s gets the blocks for all of its tokens once it has recalled its
// prefix, so that nothing is copied in vain.
func (l *Loop) recallFits(s *sequence, t *kvcache.Table, more kvcache.Longer) bool {
	size := l.cfg.Runner.BlockSize
	need, windows := l.cache.BlocksFor(len(s.tokens))-len(t.Blocks), 0
	if l.cfg.Window > 0 {
		windows = l.cache.BlocksFor(l.windowEnd(s, more.Tokens)) - engine.FirstWindowBlock(more.Tokens, l.cfg.Window, size)
	}
	if others := len(l.running); others > 1 || others == 1 && s.slot < 0 {
		need++
		windows += min(windows, 1)
	}
	return need <= l.cache.Free() && windows <= l.cache.FreeWindow()
}

// cancelTierOuts takes back the copies out to the tier that no accepted step has, and reports
// whether there were any.
func (l *Loop) cancelTierOuts() bool {
	kinds := map[engine.PreOpKind]kvcache.Kind{engine.BlockOut: kvcache.Block, engine.StateOut: kvcache.State}
	l.plan.moves = slices.DeleteFunc(l.plan.moves, func(m engine.PreOp) bool {
		kind, out := kinds[m.Kind]
		if m.Window {
			kind = kvcache.WindowBlock
		}
		return out && l.cache.Refuses(kind, m.Dst)
	})
	return l.cache.CopiesRefused()
}

// shrinkTier leaves the tier the host memory that it has, because the engine accepted a step only
// without copies out.
func (l *Loop) shrinkTier(cause error) {
	l.cache.ShrinkTier()
	l.logger.Warn("host memory for the prefix cache was refused, it grows no more", "bytes", l.tierBytes(l.cache.TierTotal()), "error", cause)
}

// tierBytes is the size of entries of the tier.
func (l *Loop) tierBytes(n kvcache.TierCounts) uint64 {
	return uint64(n.Blocks)*l.cfg.BlockBytes + uint64(n.WindowBlocks)*l.cfg.WindowBlockBytes + uint64(n.States)*l.cfg.StateBytes
}

// tierStats sets the fields of the tier.
func (l *Loop) tierStats(s *Stats) {
	bytes := func(blocks, windows, states uint64) uint64 {
		return blocks*l.cfg.BlockBytes + windows*l.cfg.WindowBlockBytes + states*l.cfg.StateBytes
	}
	total := l.cache.TierTotal() // before the entries in use, which are never more
	used, did := l.cache.TierUsed(), l.cache.Stats().Tier
	s.TierBlocks, s.TotalTierBlocks = used.Blocks, total.Blocks
	s.TierBytes, s.TotalTierBytes = l.tierBytes(used), l.tierBytes(total)
	s.TierOutBytes = bytes(did.Out[kvcache.Block], did.Out[kvcache.WindowBlock], did.Out[kvcache.State])
	s.TierInBytes = bytes(did.In[kvcache.Block], did.In[kvcache.WindowBlock], did.In[kvcache.State])
	s.TierRecalls, s.TierTokens, s.TierEvictions, s.TierDropped = did.Recalls, did.Tokens, did.Evictions, did.Dropped
}

// copying is how long the moves of a step take at the rate of copies; 0 without a tier, for which
// that rate is measured.
func (l *Loop) copying(moves []engine.PreOp) time.Duration {
	if l.cfg.Tier.Blocks == 0 {
		return 0
	}
	blocks, windows, states := 0, 0, 0
	for i := range moves {
		switch moves[i].Kind {
		case engine.StateOut, engine.StateIn:
			states++
		case engine.BlockOut, engine.BlockIn:
			if moves[i].Window {
				windows++
			} else {
				blocks++
			}
		case engine.SlotSet, engine.BlockCopy:
		}
	}
	return l.duration(blocks, windows, states)
}
