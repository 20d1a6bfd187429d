package kvcache

import (
	"sync/atomic"
)

// Config sizes a cache: Blocks >= 0 device blocks of BlockSize >= 1 tokens, and HostBlocks >= 0 in
// host memory; States >= 0 saved states, and HostStates >= 0 in host memory. A window group has
// WindowBlocks >= 1 blocks, HostWindowBlocks >= 0 in host memory, and layers that see the last
// Window >= 1 positions; without one all three are 0.
type Config struct {
	Blocks, BlockSize, HostBlocks          int
	States, HostStates                     int
	Window, WindowBlocks, HostWindowBlocks int

	Tier TierConfig
}

// none stands for the absence of a block or node.
const none = -1

// Cache is the state of all blocks, device blocks 0 to Blocks-1 and host blocks 0 to HostBlocks-1.
//
// Each device block is in one of three states: free (on the stack), held (in refs[b] >= 1 tables),
// or idle (in no table, but findable in the tree). free + held + idle = total.
type Cache struct {
	blockSize int
	total     int

	free []int32 // stack: reuse the newest first, while it is in the device's caches
	refs []int32 // by block: number of tables that hold it
	// nodeOf is, by block, the node whose tokens it holds, or none. One of them is the node's own
	// block. The others are twins: tables that computed the same tokens at the same time hold them.
	nodeOf []int32
	twins  []link // by block: neighbours in the list of twins

	tree tree
	idle idleList
	keys keyBook
	host hostBlocks

	states     states
	hostStates hostBlocks
	windows    windows
	tier       tier

	freeCount, idleCount, hostCount atomic.Int64 // for other goroutines
	freeStates, idleStates          atomic.Int64
	freeWindows, idleWindows        atomic.Int64
	hostWindows                     atomic.Int64
	tierUsed, tierTotal             [kinds]atomic.Int64

	stats counters
}

// New returns a cache whose blocks are all free.
func New(cfg Config) *Cache {
	c := &Cache{
		blockSize: cfg.BlockSize, total: cfg.Blocks,
		free: make([]int32, cfg.Blocks), refs: make([]int32, cfg.Blocks),
		nodeOf: make([]int32, cfg.Blocks), twins: make([]link, cfg.Blocks),
		tree: newTree(cfg.Blocks, cfg.Tier.Blocks, cfg.BlockSize), idle: newIdleList(), keys: newKeyBook(), host: newHostBlocks(cfg.HostBlocks),
		states: newStates(cfg.States), hostStates: newHostBlocks(cfg.HostStates), windows: newWindows(cfg),
		tier: newTier(cfg),
	}
	for i := range c.free {
		c.free[i] = int32(cfg.Blocks - 1 - i)
		c.nodeOf[i] = none
	}
	for kind := range c.tier.of {
		c.tierTotal[kind].Store(int64(len(c.tier.of[kind].free)))
	}
	c.hostCount.Store(int64(cfg.HostBlocks))
	c.count()
	c.countStates()
	c.countWindows()
	return c
}

// BlockSize is the number of tokens in a block.
func (c *Cache) BlockSize() int { return c.blockSize }

// Total is the number of device blocks.
func (c *Cache) Total() int { return c.total }

// Free is the number of blocks that Grow can return: empty ones and idle ones.
func (c *Cache) Free() int { return int(c.freeCount.Load()) }

// Cached is how many of the Free blocks are idle, that is, hold prefixes. Cached <= Free <= Total
// at any moment, but two calls see two moments.
func (c *Cache) Cached() int { return int(c.idleCount.Load()) }

// BlocksFor is the number of blocks for n tokens.
func (c *Cache) BlocksFor(n int) int {
	if n <= 0 {
		return 0
	}
	return (n-1)/c.blockSize + 1
}

// available is Free for the owner, exact even in the middle of an operation.
func (c *Cache) available() int { return len(c.free) + c.idle.count }

// count publishes the counts to other goroutines. Every operation that moves blocks ends with it.
func (c *Cache) count() {
	c.freeCount.Store(int64(c.available()))
	c.idleCount.Store(int64(c.idle.count))
}

// allocate returns a block with one reference. The caller has checked that one is available. It
// prefers empty blocks over evicting the least recently used idle node.
func (c *Cache) allocate() int32 {
	if len(c.free) == 0 {
		c.evict()
	}
	b := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.refs[b] = 1
	return b
}

// evict frees the block of the least recently used idle node. No node below it has a block (see
// idleList). The block goes to the host tier, if there is one. A node with a claim, and one above
// nodes of the tier, stays in the tree without a block.
func (c *Cache) evict() {
	n := c.idle.oldest
	c.idle.remove(&c.tree, n)
	b := c.tree.nodes[n].block
	c.spill(n, b)
	c.nodeOf[b], c.tree.nodes[n].block = none, none
	c.free = append(c.free, b)
	c.settle(n)
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

// drop removes a reference to block b. After the last one, the block becomes idle if its node has
// no twin, and free otherwise: a twin then becomes the node's own block, so that the node stays
// held as long as any table uses it.
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

// assign makes block b, which a table holds, a block of node n, which has the same tokens. It
// becomes the node's own block if the node has none or an idle one, which is then freed. Otherwise
// it becomes a twin.
func (c *Cache) assign(n, b int32) {
	defer c.assigned(n, b)
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

// assigned gives up the content that block b owed to the tier, because other content was written
// without Overwrite, and moves the keys of node n to the device.
func (c *Cache) assigned(n, b int32) {
	if e := c.tier.owed[b]; e != none {
		c.dropEntry(Block, e)
	}
	c.rekey(n)
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

// Stats are counts since the cache was created. TokensHit <= TokensLooked, Hits <= Lookups.
type Stats struct {
	Lookups      uint64 // calls of Match
	Hits         uint64 // of these, the ones that found at least one block
	TokensLooked uint64 // tokens that Match was called with
	TokensHit    uint64 // tokens in the blocks that it found
	Evictions    uint64
	// StateEvictions counts the saved states that gave way to others.
	StateEvictions uint64
	// WindowEvictions counts the findable blocks of the window group that gave way to others.
	WindowEvictions uint64
	Tier            TierStats
}

// TierStats counts the work of the host tier.
type TierStats struct {
	Recalls   uint64        // tables that Recall extended
	Tokens    uint64        // tokens that it added to them
	Evictions uint64        // entries that gave way to others
	Dropped   uint64        // blocks and states that were to have an entry and were not copied
	Out, In   [kinds]uint64 // planned copies by Kind, out to host memory and back
}

type counters struct {
	lookups, hits, tokensLooked, tokensHit, evictions, stateEvictions, windowEvictions atomic.Uint64
	recalls, tokensRecalled, tierEvictions, tierDropped                                atomic.Uint64
	copiedOut, copiedIn                                                                [kinds]atomic.Uint64
}

func (s *counters) tier() TierStats {
	t := TierStats{
		Recalls: s.recalls.Load(), Tokens: s.tokensRecalled.Load(), Evictions: s.tierEvictions.Load(), Dropped: s.tierDropped.Load(),
	}
	for kind := range kinds {
		t.Out[kind], t.In[kind] = s.copiedOut[kind].Load(), s.copiedIn[kind].Load()
	}
	return t
}

func (s *counters) recordRecall(first bool, tokens int) {
	if first {
		s.recalls.Add(1)
	}
	s.tokensRecalled.Add(uint64(tokens))
}

func (s *counters) recordMatch(asked, found int) {
	s.lookups.Add(1)
	s.tokensLooked.Add(uint64(asked))
	if found > 0 {
		s.hits.Add(1)
		s.tokensHit.Add(uint64(found))
	}
}

// Stats reads the counts, each on its own.
func (c *Cache) Stats() Stats {
	s := &c.stats
	return Stats{
		Lookups: s.lookups.Load(), Hits: s.hits.Load(), TokensLooked: s.tokensLooked.Load(), TokensHit: s.tokensHit.Load(),
		Evictions: s.evictions.Load(), StateEvictions: s.stateEvictions.Load(),
		WindowEvictions: s.windowEvictions.Load(), Tier: s.tier(),
	}
}
