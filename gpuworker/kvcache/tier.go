package kvcache

import "slices"

// The host tier has copies of blocks and states that the device evicted, in host memory. The nodes
// of the tree have them, next to their blocks on the device or instead of them, so that one tree
// has both tiers:
//
//	device   [a][b][c]            evict c, then b         device   [a]
//	tier                          ------------------->    tier        [b][c]
//
// A copy of a block goes out late. The next owner of an evicted block writes to it some steps
// later, and the copy is planned only then (Overwrite), so that the steps which fill a long table
// share its cost. Until then the copy is owed.
//
// The content of an entry is there from the moment that the step with its copy is submitted. Until
// then no sequence can be given it, because the engine may refuse that step for want of memory.

// Kind is the kind of content that a copy moves.
type Kind int

// Kinds.
const (
	Block       Kind = iota // a block of the first group
	WindowBlock             // a block of the window group
	State                   // a saved state
	kinds
)

// Copy is a copy between the device and host memory. In is towards the device. Of a saved state the
// device's number is the state's id.
type Copy struct {
	Kind     Kind
	In       bool
	Src, Dst int32
}

// TierConfig sizes the host tier: how many blocks of both groups and states it has, after those of
// Config.HostBlocks, Config.HostWindowBlocks and Config.HostStates. The zero value has no tier.
type TierConfig struct {
	Blocks, WindowBlocks, States int
	// Plan adds a copy to the next step, after those that were added before. Steps run in order, and
	// each copies before it computes. It must not call the cache.
	Plan func(Copy)
	// Room reports whether the next step can have another copy.
	Room func() bool
}

// phase is how far the copy of an entry is.
type phase uint8

const (
	absent  phase = iota // the entry is free
	owed                 // the block still has the content, and the copy is not planned
	planned              // its step is not submitted
	ready
)

// entries are the places of one kind in the tier. A node has at most one. They are evicted least
// recently used first. Of blocks a node precedes the ones above it, because it is evicted before
// them and is moved to the end of the list before them. Interval states have their own list, because
// one long prompt saves more of them than the tier may have entries (see victim).
type entries struct {
	first      int32   // number in host memory of entry 0
	free       []int32 // stack
	nodeOf     []int32 // by entry: the node that has it, or none
	phase      []phase
	written    []bool  // a step that writes it was accepted, so that the engine has memory for it
	block      []int32 // by entry that is owed: the device block that has its content
	interval   []bool  // by entry: it is an interval state, see PublishState
	links      []link
	pinned     []bool     // by entry: it is not in a list, see Recall
	rest       recentList // all but interval states
	intervals  recentList
	submitting []int32 // entries that are planned, and some that were
}

// recentList is a list of entries in the order of their use.
type recentList struct {
	oldest, newest int32 // none: the list is empty
	count          int
}

// tier is the host tier.
type tier struct {
	of   [kinds]entries
	owed []int32 // by device block: the entry whose content it still has, or none
	plan func(Copy)
	room func() bool
	gap  bool // a node above others lost its content or its claim, see dropUnreachable
}

func newTier(cfg Config) tier {
	t := tier{owed: slices.Repeat([]int32{none}, cfg.Blocks), plan: cfg.Tier.Plan, room: cfg.Tier.Room}
	counts := [kinds]int{cfg.Tier.Blocks, cfg.Tier.WindowBlocks, cfg.Tier.States}
	firsts := [kinds]int{cfg.HostBlocks, cfg.HostWindowBlocks, cfg.HostStates}
	for kind, n := range counts {
		t.of[kind] = entries{
			first: int32(firsts[kind]), nodeOf: slices.Repeat([]int32{none}, n), phase: make([]phase, n), written: make([]bool, n),
			block: make([]int32, n), interval: make([]bool, n), links: make([]link, n), pinned: make([]bool, n),
			rest: recentList{oldest: none, newest: none}, intervals: recentList{oldest: none, newest: none},
		}
		for e := int32(n) - 1; e >= 0; e-- {
			t.of[kind].free = append(t.of[kind].free, e)
		}
	}
	return t
}

// list is the list of an entry.
func (s *entries) list(e int32) *recentList {
	if s.interval[e] {
		return &s.intervals
	}
	return &s.rest
}

// victim returns the entry that gives way to another one, or none. The interval states keep half of
// the entries at most, unless the others leave more free.
func (s *entries) victim(interval bool) int32 {
	after := s.intervals.count
	if interval {
		after++
	}
	if 2*after > s.intervals.count+s.rest.count {
		return s.intervals.oldest
	}
	return s.rest.oldest
}

// push adds an entry to its list as the newest.
func (s *entries) push(e int32) {
	list := s.list(e)
	s.links[e] = link{older: list.newest, newer: none}
	if list.newest == none {
		list.oldest = e
	} else {
		s.links[list.newest].newer = e
	}
	list.newest = e
	list.count++
}

// unlink removes an entry from its list.
func (s *entries) unlink(e int32) {
	if s.pinned[e] {
		s.pinned[e] = false
		return
	}
	list, l := s.list(e), s.links[e]
	if l.older == none {
		list.oldest = l.newer
	} else {
		s.links[l.older].newer = l.newer
	}
	if l.newer == none {
		list.newest = l.older
	} else {
		s.links[l.newer].older = l.older
	}
	list.count--
}

// toTier gives node n an entry, whose phase the caller sets. It evicts another one if all are used.
// If n has an entry, that becomes the newest one, and kept is true. ok is false without an entry,
// or if n must not be found.
func (c *Cache) toTier(kind Kind, n int32, interval bool) (e int32, kept, ok bool) {
	s := &c.tier.of[kind]
	if c.tree.nodes[n].lost {
		return none, false, false
	}
	if e := c.tree.nodes[n].hosted[kind]; e != none {
		if !s.pinned[e] {
			s.unlink(e)
			s.interval[e] = s.interval[e] && interval
			s.push(e)
		}
		return e, true, true
	}
	if len(s.free) == 0 {
		victim := s.victim(interval)
		if victim == none {
			if len(s.nodeOf) > 0 {
				c.stats.tierDropped.Add(1)
			}
			return none, false, false
		}
		c.stats.tierEvictions.Add(1)
		c.loseEntry(kind, victim)
	}
	e = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.nodeOf[e], s.interval[e] = n, interval
	s.push(e)
	c.tierUsed[kind].Add(1)
	c.tree.nodes[n].hosted[kind] = e
	return e, false, true
}

// loseEntry frees an entry of the list.
func (c *Cache) loseEntry(kind Kind, e int32) {
	s := &c.tier.of[kind]
	n := s.nodeOf[e]
	s.unlink(e)
	if s.phase[e] == owed {
		c.tier.owed[s.block[e]] = none
	}
	s.nodeOf[e], s.phase[e] = none, absent
	s.free = append(s.free, e)
	c.tierUsed[kind].Add(-1)
	c.tree.nodes[n].hosted[kind] = none
	c.settle(n)
}

// settle brings a node in order that lost its block or an entry: without content of its tokens its
// state and its window block are of no use, its keys follow the tier that has it, and a node that
// has nothing goes.
func (c *Cache) settle(n int32) {
	x := &c.tree.nodes[n]
	if x.block == none && x.hosted[Block] == none {
		if x.state != 0 {
			c.loseState(x.state)
		}
		if x.window != none {
			c.loseWindow(x.window)
		}
		for _, kind := range []Kind{WindowBlock, State} {
			if e := x.hosted[kind]; e != none {
				c.loseEntry(kind, e) // which settles n too
			}
		}
	}
	c.noteGap(n)
	c.rekey(n)
	c.tree.prune(n)
}

// noteGap makes dropUnreachable look for entries below a node that lost its content or its claim.
func (c *Cache) noteGap(n int32) {
	if x := &c.tree.nodes[n]; !c.reachable(x) && x.children > 0 && len(c.tier.of[Block].nodeOf) > 0 {
		c.tier.gap = true
	}
}

// reachable reports whether a sequence can start with the entries below a node, once it has those
// above it. If a node is claimed, a sequence computes its content.
func (c *Cache) reachable(x *node) bool {
	return x.block != none || x.hosted[Block] != none || x.claims > 0
}

// dropEntry is loseEntry for content that was to be copied and is lost instead.
func (c *Cache) dropEntry(kind Kind, e int32) {
	c.stats.tierDropped.Add(1)
	c.loseEntry(kind, e)
}

// dropUnreachable frees the entries of nodes below one with neither content nor a claim, because no
// sequence can start with them: their keys would attract requests in vain. It takes a pass over all
// nodes, but only after a copy of content above others was dropped, or a claim there.
func (c *Cache) dropUnreachable() {
	if !c.tier.gap {
		return
	}
	nodes := c.tree.nodes
	type state struct{ known, reachable bool }
	states := make([]state, len(nodes))
	var path, lost []int32
	for i := range nodes {
		m := int32(i)
		if nodes[m].stamp == 0 {
			continue
		}
		for path = path[:0]; m != none && !states[m].known; m = nodes[m].parent {
			path = append(path, m)
		}
		reachable := m == none || states[m].reachable
		for _, m := range slices.Backward(path) {
			reachable = reachable && c.reachable(&nodes[m])
			states[m] = state{true, reachable}
		}
		if !reachable && nodes[i].hosted[Block] != none {
			lost = append(lost, int32(i))
		}
	}
	for _, n := range lost {
		c.loseEntry(Block, c.tree.nodes[n].hosted[Block])
	}
	c.tier.gap = false
}

// spill gives the block of a node that is being evicted to the tier.
func (c *Cache) spill(n, b int32) {
	if e, kept, ok := c.toTier(Block, n, false); ok && !kept {
		c.tier.of[Block].phase[e], c.tier.of[Block].block[e], c.tier.owed[b] = owed, b, e
	}
}

// spillNow plans the copy of a window block or of a state that is being evicted: id on the device.
func (c *Cache) spillNow(kind Kind, n, id int32, interval bool) {
	switch x := &c.tree.nodes[n]; {
	case len(c.tier.of[kind].nodeOf) == 0:
		return
	case !x.lost && x.hosted[kind] == none && !c.tier.room():
		c.stats.tierDropped.Add(1)
		return
	}
	if e, kept, ok := c.toTier(kind, n, interval); ok && !kept {
		c.planOut(kind, id, e)
	}
}

func (c *Cache) planOut(kind Kind, id, e int32) {
	s := &c.tier.of[kind]
	s.phase[e] = planned
	s.submitting = append(s.submitting, e)
	c.stats.copiedOut[kind].Add(1)
	c.tier.plan(Copy{Kind: kind, Src: id, Dst: s.first + e})
}

// Overwrite announces that the caller will write positions from `from` to end of t: the next step
// copies the content that these blocks owe to the tier. It must be called before a copy into a
// block or a segment is planned. Blocks of Own and Recall need no call.
func (c *Cache) Overwrite(t *Table, from, end int) {
	if len(c.tier.of[Block].nodeOf) == 0 {
		return
	}
	for i := from / c.blockSize; i < min(c.BlocksFor(end), len(t.Blocks)); i++ {
		c.payOff(t.Blocks[i])
	}
}

// payOff plans the copy that a block owes, or drops it if the next step has no room.
func (c *Cache) payOff(b int32) {
	e := c.tier.owed[b]
	if e == none {
		return
	}
	if !c.tier.room() {
		c.dropEntry(Block, e)
		return
	}
	c.tier.owed[b] = none
	c.planOut(Block, b, e)
}

// CopiesSubmitted states that the engine accepted the step with all planned copies.
func (c *Cache) CopiesSubmitted() {
	for kind := range c.tier.of {
		s := &c.tier.of[kind]
		for _, e := range s.submitting {
			if s.written[e] = true; s.phase[e] == planned {
				s.phase[e] = ready
			}
		}
		s.submitting = s.submitting[:0]
	}
}

// CopiesRefused states that the engine refused the planned copies into host memory, and that the
// caller removed them from its step. It reports whether there were any.
func (c *Cache) CopiesRefused() bool {
	some := false
	for kind := range c.tier.of {
		s := &c.tier.of[kind]
		if len(s.submitting) == 0 {
			continue
		}
		some = true
		for _, e := range s.submitting {
			if s.phase[e] == planned {
				c.dropEntry(Kind(kind), e)
			}
		}
		s.submitting = s.submitting[:0]
	}
	return some
}

// ShrinkTier states that the engine has no more host memory: the tier loses its free entries that
// were never written.
func (c *Cache) ShrinkTier() {
	for kind := range c.tier.of {
		s := &c.tier.of[kind]
		before := len(s.free)
		s.free = slices.DeleteFunc(s.free, func(e int32) bool { return !s.written[e] })
		c.tierTotal[kind].Add(int64(len(s.free) - before))
	}
}

// Refuses reports whether a copy is one that CopiesRefused gives up.
func (c *Cache) Refuses(kind Kind, dst int32) bool { return dst >= c.tier.of[kind].first }

// TierCounts counts entries of the tier.
type TierCounts struct{ Blocks, WindowBlocks, States int }

// TierTotal counts the entries that ShrinkTier left, used and free. It may be called from any
// goroutine. Called before TierUsed, it gives no less than that.
func (c *Cache) TierTotal() TierCounts {
	return TierCounts{int(c.tierTotal[Block].Load()), int(c.tierTotal[WindowBlock].Load()), int(c.tierTotal[State].Load())}
}

// TierUsed counts the entries that are in use. It may be called from any goroutine.
func (c *Cache) TierUsed() TierCounts {
	return TierCounts{int(c.tierUsed[Block].Load()), int(c.tierUsed[WindowBlock].Load()), int(c.tierUsed[State].Load())}
}
