package kvcache

import "sync/atomic"

// Config sizes a cache: Blocks >= 0 of BlockSize >= 1 tokens each on the device, and HostBlocks >= 0 in host memory.
type Config struct {
	Blocks, BlockSize, HostBlocks int
}

// none stands where the number of a block or a node would.
const none = -1

// Cache is the state of all blocks, device blocks 0 .. Blocks-1 and host blocks 0 .. HostBlocks-1.
//
// Each device block is in one of three states: free (on the stack), held (in refs[b] >= 1 tables), or idle (in no table, and a
// node of the tree has it). free + held + idle = total.
type Cache struct {
	blockSize int
	total     int

	free []int32 // stack: the block freed last is given first, while it is still in the device's caches
	refs []int32 // by block: the tables that hold it
	// nodeOf is, by block, the node whose tokens it holds, or none. At most one block of a node is the node's own; the others are
	// its twins, each held by a table that computed the same tokens at the same time.
	nodeOf []int32
	twins  []link // by block: its neighbours among the twins of its node

	tree tree
	idle idleList
	keys keyBook
	host hostBlocks

	freeCount, idleCount, hostCount atomic.Int64 // what available, idle.count and len(host.free) were after the last operation

	stats counters
}

// New returns a cache whose blocks are all free.
func New(cfg Config) *Cache {
	c := &Cache{
		blockSize: cfg.BlockSize, total: cfg.Blocks,
		free: make([]int32, cfg.Blocks), refs: make([]int32, cfg.Blocks),
		nodeOf: make([]int32, cfg.Blocks), twins: make([]link, cfg.Blocks),
		tree: newTree(cfg.Blocks, cfg.BlockSize), idle: newIdleList(), keys: newKeyBook(), host: newHostBlocks(cfg.HostBlocks),
	}
	for i := range c.free {
		c.free[i] = int32(cfg.Blocks - 1 - i)
		c.nodeOf[i] = none
	}
	c.hostCount.Store(int64(cfg.HostBlocks))
	c.count()
	return c
}

// BlockSize is the number of tokens a block holds.
func (c *Cache) BlockSize() int { return c.blockSize }

// Total is the number of device blocks.
func (c *Cache) Total() int { return c.total }

// Free is the number of blocks that Grow can hand out: those that hold nothing, and those that hold prefixes nobody uses.
func (c *Cache) Free() int { return int(c.freeCount.Load()) }

// Cached is how many of the Free blocks hold prefixes. Cached <= Free <= Total at any moment, but two calls see two moments.
func (c *Cache) Cached() int { return int(c.idleCount.Load()) }

// BlocksFor is the number of blocks that n tokens take.
func (c *Cache) BlocksFor(n int) int {
	if n <= 0 {
		return 0
	}
	return (n-1)/c.blockSize + 1
}

// available is Free as the owner knows it, in the middle of an operation too.
func (c *Cache) available() int { return len(c.free) + c.idle.count }

// count tells the other goroutines what is free. Every operation that moves blocks ends with it.
func (c *Cache) count() {
	c.freeCount.Store(int64(c.available()))
	c.idleCount.Store(int64(c.idle.count))
}

// take hands out a block with one reference; the caller has seen that one is available. Blocks that hold nothing go first, then
// the idle node used longest ago loses its own.
func (c *Cache) take() int32 {
	if len(c.free) == 0 {
		c.evict()
	}
	b := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.refs[b] = 1
	return b
}

// evict frees the block of the idle node used longest ago. That node is a leaf: see idleList. A node that somebody is going to
// compute again stays in the tree without a block.
func (c *Cache) evict() {
	n := c.idle.oldest
	c.idle.remove(&c.tree, n)
	b := c.tree.nodes[n].block
	c.keys.detachAll(&c.tree.nodes[n])
	c.nodeOf[b] = none
	c.tree.nodes[n].block = none
	c.free = append(c.free, b)
	c.tree.prune(n)
	c.stats.evictions.Add(1)
}

// hold adds a reference to the block of node n.
func (c *Cache) hold(n int32) int32 {
	b := c.tree.nodes[n].block
	if c.refs[b] == 0 {
		c.idle.remove(&c.tree, n)
	}
	c.refs[b]++
	return b
}

// drop takes a reference to block b away. After the last one the block is idle if its node has no other, and free otherwise: a
// twin takes the place of the node's own block, which keeps the node held for as long as a table stands on it.
func (c *Cache) drop(b int32) {
	c.refs[b]--
	if c.refs[b] > 0 {
		return
	}
	n := c.nodeOf[b]
	switch {
	case n == none:
	case c.tree.nodes[n].block != b:
		c.removeTwin(n, b)
	case c.tree.nodes[n].twin != none:
		twin := c.tree.nodes[n].twin
		c.removeTwin(n, twin)
		c.tree.nodes[n].block, c.nodeOf[twin] = twin, n
	default:
		c.idle.add(&c.tree, n)
		return
	}
	c.nodeOf[b] = none
	c.free = append(c.free, b)
}

// settle gives block b, which a table holds, to node n, which has the tokens that b holds. It becomes the node's own block if
// the node has none or one that nobody holds, which is then free; otherwise it becomes a twin.
func (c *Cache) settle(n, b int32) {
	old := c.tree.nodes[n].block
	c.nodeOf[b] = n
	if old != none && c.refs[old] > 0 {
		c.addTwin(n, b)
		return
	}
	if old != none {
		c.idle.remove(&c.tree, n)
		c.nodeOf[old] = none
		c.free = append(c.free, old)
	}
	c.tree.nodes[n].block = b
}

func (c *Cache) addTwin(n, b int32) {
	head := c.tree.nodes[n].twin
	c.twins[b] = link{older: none, newer: head}
	if head != none {
		c.twins[head].older = b
	}
	c.tree.nodes[n].twin = b
}

func (c *Cache) removeTwin(n, b int32) {
	l := c.twins[b]
	if l.older == none {
		c.tree.nodes[n].twin = l.newer
	} else {
		c.twins[l.older].newer = l.newer
	}
	if l.newer != none {
		c.twins[l.newer].older = l.older
	}
}
