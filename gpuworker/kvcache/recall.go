package kvcache

import (
	"math"
	"slices"
)

// Longer is a prefix that continues a table and that both tiers have together.
type Longer struct {
	Tokens                       int // of the table and the prefix
	Blocks, WindowBlocks, States int // to copy from host memory
	path                         []int32
	rest                         []int32 // the nodes after path, if Cut left some
}

// Copies is the number of copies from host memory.
func (m Longer) Copies() int { return m.Blocks + m.WindowBlocks + m.States }

// Longer returns the longest prefix of ids of which t, as a match returned it, is the beginning. ok
// is false unless it is longer than t. After a match it needs copies from host memory. If the
// sequence of t has published more blocks since the match, others may have brought all of it to the
// device.
func (c *Cache) Longer(t *Table, r Root, ids []int32) (more Longer, ok bool) {
	if len(c.tier.of[Block].nodeOf) == 0 || t.released {
		return more, false
	}
	w := c.end(t, r)
	var path []int32
	for i := t.Shared; i < c.usable(len(ids)); i++ {
		n, _ := c.tree.step(w, c.part(ids, i))
		if n == none || !c.has(Block, n) {
			break
		}
		path = append(path, n)
		w = c.tree.walkFrom(n)
	}
	more = c.longest(t, path, math.MaxInt)
	return more, more.Tokens > t.Shared*c.blockSize
}

// Cut returns the longest beginning of more, a result of Longer for t, that needs at most `most`
// copies. Without one the result has the tokens of t.
func (c *Cache) Cut(t *Table, more Longer, most int) Longer {
	part := c.longest(t, more.path, most)
	part.rest = more.path[len(part.path):]
	return part
}

// longest returns the longest beginning of a path after t with which a sequence can start, and that
// needs at most `most` copies.
func (c *Cache) longest(t *Table, path []int32, most int) Longer {
	size, deepest := c.blockSize, Longer{Tokens: t.Shared * c.blockSize}
	run := t.Shared - min(t.slid, t.Shared) // nodes with window blocks up to the last one
	var need Longer
	seen := t.Shared // the window blocks from this one on are counted in need
	for i, n := range path {
		x, depth := &c.tree.nodes[n], t.Shared+i+1
		if x.block == none {
			need.Blocks++
		}
		if c.windows.size > 0 {
			first := c.firstWindow(depth * size)
			if x.window == none {
				need.WindowBlocks++
			}
			for ; seen < min(first, depth); seen++ {
				if c.tree.nodes[path[seen-t.Shared]].window == none {
					need.WindowBlocks--
				}
			}
			if run++; !c.has(WindowBlock, n) {
				run = 0
			}
			if run < depth-first {
				continue
			}
		}
		need.States = 0
		switch {
		case c.hasStates() && !c.has(State, n):
			continue
		case c.hasStates() && x.state == 0:
			need.States = 1
		}
		if need.Copies() <= most {
			need.Tokens, need.path = depth*size, path[:i+1]
			deepest = need
		}
	}
	return deepest
}

// has reports whether a sequence could be given the content of a node, from either tier.
func (c *Cache) has(kind Kind, n int32) bool {
	x := &c.tree.nodes[n]
	onDevice := [kinds]bool{Block: x.block != none, WindowBlock: x.window != none, State: x.state != 0}
	e := x.hosted[kind]
	return onDevice[kind] || e != none && c.tier.of[kind].phase[e] == ready
}

// Recall extends t by a result of Longer or Cut, and plans the copies from host memory. It must
// follow that call, and all blocks of t must be shared ones. The entries stay in the tier. If
// layers carry states, the caller then holds `state`, which stands after the last token, and t is
// without the state that a match returned. If too few blocks or states are available, it changes
// nothing and returns false.
func (c *Cache) Recall(t *Table, more Longer) (state int32, ok bool) {
	if !c.fits(t, more) {
		return 0, false
	}
	// Allocating evicts, and evicted content may displace entries, but not the ones needed here,
	// nor those of the rest, which the next part brings. Afterwards all of them are the newest.
	for _, n := range more.path {
		c.pin(n)
	}
	for _, n := range more.rest {
		c.pin(n)
	}
	first, start := len(t.Blocks), c.firstWindow(more.Tokens)
	for _, n := range more.path {
		b := int32(none)
		if c.tree.nodes[n].block != none {
			b = c.hold(n)
		}
		t.Blocks = append(t.Blocks, b)
	}
	if c.windows.size > 0 {
		c.Slide(t, more.Tokens)
		for i := len(t.Window); i < len(t.Blocks); i++ {
			b := int32(none)
			if n := more.path[i-first]; i >= start && c.tree.nodes[n].window != none {
				b = c.holdWindow(n)
			}
			t.Window = append(t.Window, b)
		}
		t.matched = len(t.Blocks)
	}
	if last := more.path[len(more.path)-1]; c.hasStates() && c.tree.nodes[last].state != 0 {
		state = c.tree.nodes[last].state
		c.HoldState(state)
	}
	// All copies out come first, because the engine runs copies together that do not overlap.
	for i := first; i < len(t.Blocks); i++ {
		if t.Blocks[i] == none {
			t.Blocks[i] = c.allocate()
			c.payOff(t.Blocks[i])
		}
	}
	for i := max(start, first); c.windows.size > 0 && i < len(t.Blocks); i++ {
		if t.Window[i] == none {
			t.Window[i] = c.allocateWindow()
		}
	}
	if c.hasStates() && state == 0 {
		state, _ = c.AllocState() // fits has checked that there is one
	}
	c.planIn(t, first, state, more)
	for _, n := range slices.Backward(more.rest) {
		c.unpin(n)
	}
	for _, n := range slices.Backward(more.path) {
		c.unpin(n)
	}
	t.Shared = len(t.Blocks)
	c.stats.recordRecall(!t.recalled, len(more.path)*c.blockSize)
	t.recalled = true
	c.count()
	c.countWindows()
	return state, true
}

// planIn gives the nodes of a recall the blocks and the state that t has for them, and plans the
// copies into those that are new.
func (c *Cache) planIn(t *Table, first int, state int32, more Longer) {
	in := func(kind Kind, n, id int32) {
		s := &c.tier.of[kind]
		c.stats.copiedIn[kind].Add(1)
		c.tier.plan(Copy{Kind: kind, In: true, Src: s.first + c.tree.nodes[n].hosted[kind], Dst: id})
	}
	for i, n := range more.path {
		if x, b := &c.tree.nodes[n], t.Blocks[first+i]; x.block == none {
			in(Block, n, b)
			c.assign(n, b)
		}
		if first+i >= len(t.Window) {
			continue
		}
		if x, b := &c.tree.nodes[n], t.Window[first+i]; b != none && x.window == none {
			in(WindowBlock, n, b)
			x.window, c.windows.nodeOf[b] = b, n
		}
	}
	last := more.path[len(more.path)-1]
	if c.hasStates() && c.tree.nodes[last].state == 0 {
		in(State, last, state)
		c.tree.nodes[last].state, c.states.nodeOf[state] = state, last
		c.rekey(last)
	}
}

// fits reports whether a recall finds the blocks and the state that it needs. Idle blocks of its
// own path are counted among those available, but it takes them.
func (c *Cache) fits(t *Table, more Longer) bool {
	blocks, windows := more.Blocks, more.WindowBlocks
	for i, n := range more.path {
		x := &c.tree.nodes[n]
		if x.block != none && c.refs[x.block] == 0 {
			blocks++
		}
		if x.window != none && c.windows.refs[x.window] == 0 && c.seen(t.Shared+i, more.Tokens) {
			windows++
		}
	}
	return blocks <= c.available() && windows <= len(c.windows.free)+c.windows.idle && (more.States == 0 || c.FreeStates() > 0) &&
		len(more.path) > 0 && t.Shared == len(t.Blocks)
}

// pin keeps the entries of a node from being evicted until unpin.
func (c *Cache) pin(n int32) {
	for kind := range c.tier.of {
		if e := c.tree.nodes[n].hosted[kind]; e != none {
			c.tier.of[kind].unlink(e)
			c.tier.of[kind].pinned[e] = true
		}
	}
}

// unpin makes the entries of a node the newest, unless they were lost.
func (c *Cache) unpin(n int32) {
	for kind := range c.tier.of {
		s := &c.tier.of[kind]
		if e := c.tree.nodes[n].hosted[kind]; e != none && s.pinned[e] {
			s.pinned[e] = false
			s.push(e)
		}
	}
}
