package kvcache

import "slices"

// windows tracks the blocks of the window group: of layers that see Config.Window positions alone.
// A table has its own blocks of them, and drops each block that left the window. A node of the tree
// has at most one. A block is free, or tables hold it, or it is idle: findable at a node and in no
// table. It stays findable until GrowWindow needs it, from the front of the idle list, or until the
// block of its node goes. Unlike other blocks, those of a prefix go in any order.
type windows struct {
	size   int     // positions; 0: no window group
	total  int     // blocks
	free   []int32 // stack
	refs   []int32 // by block: number of tables that hold it
	nodeOf []int32 // by block: the node that has it, or none
	links  []link  // by block: neighbours in the idle list
	kept   []bool  // by idle block: it is worth a place in the host tier
	front  int32   // the first to go
	back   int32
	idle   int // blocks in the list
	host   hostBlocks
}

func newWindows(cfg Config) windows {
	n := cfg.WindowBlocks
	w := windows{
		size: cfg.Window, total: n, refs: make([]int32, n), nodeOf: slices.Repeat([]int32{none}, n), links: make([]link, n),
		kept:  make([]bool, n),
		front: none, back: none, host: newHostBlocks(cfg.HostWindowBlocks),
	}
	for b := int32(n) - 1; b >= 0; b-- {
		w.free = append(w.free, b)
	}
	return w
}

// pushFront and pushBack add an idle block to the list.
func (w *windows) pushFront(b int32) {
	w.links[b] = link{older: none, newer: w.front}
	if w.front == none {
		w.back = b
	} else {
		w.links[w.front].older = b
	}
	w.front = b
	w.idle++
}

func (w *windows) pushBack(b int32) {
	w.links[b] = link{older: w.back, newer: none}
	if w.back == none {
		w.front = b
	} else {
		w.links[w.back].newer = b
	}
	w.back = b
	w.idle++
}

// unlink takes an idle block out of the list.
func (w *windows) unlink(b int32) {
	l := w.links[b]
	if l.older == none {
		w.front = l.newer
	} else {
		w.links[l.older].newer = l.newer
	}
	if l.newer == none {
		w.back = l.older
	} else {
		w.links[l.newer].older = l.older
	}
	w.idle--
}

// firstWindow is the first block that holds a position which `position` sees.
func (c *Cache) firstWindow(position int) int { return max(0, position+1-c.windows.size) / c.blockSize }

// seen reports whether block i holds positions that a match of `tokens` tokens sees.
func (c *Cache) seen(i, tokens int) bool {
	return i < tokens/c.blockSize && i >= c.firstWindow(tokens/c.blockSize*c.blockSize)
}

// FreeWindow is the number of blocks that GrowWindow can return: empty ones and idle ones.
func (c *Cache) FreeWindow() int { return int(c.freeWindows.Load()) }

// CachedWindow is how many of the FreeWindow blocks are idle. Two calls see two moments.
func (c *Cache) CachedWindow() int { return int(c.idleWindows.Load()) }

// FreeHostWindow is the number of host blocks that AllocHostWindow can return.
func (c *Cache) FreeHostWindow() int { return int(c.hostWindows.Load()) }

// countWindows publishes the counts to other goroutines.
func (c *Cache) countWindows() {
	c.freeWindows.Store(int64(len(c.windows.free) + c.windows.idle))
	c.idleWindows.Store(int64(c.windows.idle))
	c.hostWindows.Store(int64(len(c.windows.host.free)))
}

// AllocHostWindow is AllocHost for blocks of the window group.
func (c *Cache) AllocHostWindow(n int) ([]int32, bool) {
	blocks, ok := c.windows.host.alloc(n)
	c.countWindows()
	return blocks, ok
}

// ReleaseHostWindow is ReleaseHost for blocks of the window group.
func (c *Cache) ReleaseHostWindow(blocks []int32) error {
	err := c.windows.host.release(blocks)
	c.countWindows()
	return err
}

// GrowWindow appends blocks of the window group to t until they cover n tokens. If too few are
// free, it changes nothing and returns false.
func (c *Cache) GrowWindow(t *Table, n int) bool {
	w := &c.windows
	need := c.BlocksFor(n) - len(t.Window)
	switch {
	case t.released:
		return false
	case need <= 0:
		return true
	case need > len(w.free)+w.idle:
		return false
	}
	t.Window = slices.Grow(t.Window, need)
	for range need {
		t.Window = append(t.Window, c.allocateWindow())
	}
	c.countWindows()
	return true
}

func (c *Cache) allocateWindow() int32 {
	w := &c.windows
	if len(w.free) == 0 {
		if w.kept[w.front] {
			c.spillNow(WindowBlock, w.nodeOf[w.front], w.front, false)
		}
		c.loseWindow(w.front)
		c.stats.windowEvictions.Add(1)
	}
	b := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.refs[b] = 1
	return b
}

// Slide drops the blocks of the window group of t that `position`, and those after it, do not see.
// Blocks that match began with, and those that a match of one of the kept lengths sees, are as
// valuable as those that Release drops. All others are the first to go.
func (c *Cache) Slide(t *Table, position int, kept ...int) {
	first := c.firstWindow(position)
	for len(t.Window) < first {
		t.Window = append(t.Window, none)
	}
	for i := t.slid; i < first; i++ {
		if b := t.Window[i]; b != none {
			keeps := i < t.matched || slices.ContainsFunc(kept, func(tokens int) bool { return c.seen(i, tokens) })
			c.dropWindow(b, keeps)
			t.Window[i] = none
		}
	}
	t.slid = max(t.slid, first)
	c.countWindows()
}

// Slides reports whether Slide would drop blocks.
func (c *Cache) Slides(t *Table, position int) bool {
	for _, b := range t.Window[min(t.slid, len(t.Window)):min(max(t.slid, c.firstWindow(position)), len(t.Window))] {
		if b != none {
			return true
		}
	}
	return false
}

// dropWindow removes a reference to a block. After the last one, the block is free, or idle if it
// is findable.
func (c *Cache) dropWindow(b int32, keeps bool) {
	w := &c.windows
	w.refs[b]--
	w.kept[b] = keeps
	switch {
	case w.refs[b] > 0:
	case w.nodeOf[b] == none:
		w.free = append(w.free, b)
	case keeps:
		w.pushBack(b)
	default:
		w.pushFront(b)
	}
}

// holdWindow adds a reference to the window block of node n.
func (c *Cache) holdWindow(n int32) int32 {
	b := c.tree.nodes[n].window
	if c.windows.refs[b] == 0 {
		c.windows.unlink(b)
	}
	c.windows.refs[b]++
	return b
}

// loseWindow makes a block unfindable. Tables that hold it keep it. The keys of its node stay: they
// follow the blocks of the first group, because a scheduler's search needs a worker that has a
// prefix to have all shorter ones.
func (c *Cache) loseWindow(b int32) {
	w := &c.windows
	c.tree.nodes[w.nodeOf[b]].window, w.nodeOf[b] = none, none
	if w.refs[b] == 0 {
		w.unlink(b)
		w.free = append(w.free, b)
	}
	c.countWindows()
}

// publishWindow makes block i of the window group of t findable at node n, which has the same
// tokens, unless another table holds the block of that node.
func (c *Cache) publishWindow(t *Table, i int, n int32) {
	if i >= len(t.Window) || t.Window[i] == none || c.tree.nodes[n].lost {
		return
	}
	w, b, old := &c.windows, t.Window[i], c.tree.nodes[n].window
	if w.nodeOf[b] != none || old != none && w.refs[old] > 0 {
		return
	}
	if old != none {
		w.unlink(old)
		w.nodeOf[old] = none
		w.free = append(w.free, old)
	}
	c.tree.nodes[n].window, w.nodeOf[b] = b, n
	c.countWindows()
}

// MatchWindow is Match for a model with a window group: the table ends where the window blocks are
// there that the position after it sees. It also returns how many tokens Match would have found.
func (c *Cache) MatchWindow(r Root, ids []int32) (t *Table, found int) {
	t = &Table{}
	w := c.tree.root(r)
	var path []int32
	deepest, run := 0, 0 // run: nodes with window blocks up to the last of path
	for i := range c.usable(len(ids)) {
		n, _ := c.tree.step(w, c.part(ids, i))
		if n == none || c.tree.nodes[n].block == none {
			break
		}
		path = append(path, n)
		if run++; c.tree.nodes[n].window == none {
			run = 0
		}
		if run >= len(path)-c.firstWindow(len(path)*c.blockSize) {
			deepest = len(path)
		}
		w = c.tree.walkFrom(n)
	}
	if deepest > 0 {
		t.Blocks = make([]int32, 0, c.BlocksFor(len(ids))+1)
		t.Window = make([]int32, 0, c.BlocksFor(len(ids))+1)
		t.slid, t.matched = c.firstWindow(deepest*c.blockSize), deepest
	}
	for i, n := range path[:deepest] {
		t.Blocks = append(t.Blocks, c.hold(n))
		if i < t.slid {
			t.Window = append(t.Window, none)
		} else {
			t.Window = append(t.Window, c.holdWindow(n))
		}
	}
	t.Shared = len(t.Blocks)
	c.stats.recordMatch(len(ids), t.Shared*c.blockSize)
	c.count()
	c.countWindows()
	return t, len(path) * c.blockSize
}

// OwnWindow is Own for the block of the window group.
func (c *Cache) OwnWindow(t *Table, position int) (src, dst int32, copied, ok bool) {
	i, w := position/c.blockSize, &c.windows
	if i >= len(t.Window) || t.Window[i] == none || w.refs[t.Window[i]] == 1 && w.nodeOf[t.Window[i]] == none {
		return none, none, false, true
	}
	if len(w.free)+w.idle == 0 {
		return none, none, false, false
	}
	src, dst = t.Window[i], c.allocateWindow()
	t.Window[i] = dst
	c.dropWindow(src, true)
	c.countWindows()
	return src, dst, true, true
}
