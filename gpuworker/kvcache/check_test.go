package kvcache

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// check proves every invariant of a cache against the tables that are alive.
func check(t *testing.T, c *Cache, tables []*Table) {
	t.Helper()
	refs := make([]int32, c.total)
	for _, table := range tables {
		require.LessOrEqual(t, table.Shared, len(table.Blocks))
		for i, b := range table.Blocks {
			require.False(t, slices.Contains(table.Blocks[:i], b), "a table has a block once")
			refs[b]++
		}
		checkChain(t, c, table)
	}
	require.Equal(t, refs, c.refs, "references are those of the tables")
	nodes := liveNodes(t, c)
	checkBlocks(t, c)
	checkIdle(t, c, nodes)
	checkTwins(t, c, nodes)
	checkClaims(t, c, nodes, tables)
	checkKeys(t, c, nodes)
	checkWindows(t, c, nodes, tables)
	checkTier(t, c, nodes)
	require.LessOrEqual(t, c.Cached(), c.Free())
	require.LessOrEqual(t, c.Free(), c.Total())
	require.Equal(t, len(c.host.free), c.FreeHost())
}

// requireNoNodes fails where a node can be found.
func requireNoNodes(t *testing.T, c *Cache) {
	t.Helper()
	require.Empty(t, liveNodes(t, c))
}

// liveNodes returns the nodes in use. Each has a block or a claim, and a parent in use. Hidden ones
// are in no chain.
func liveNodes(t *testing.T, c *Cache) map[int32]bool {
	t.Helper()
	nodes := map[int32]bool{}
	for i, n := range c.tree.chains.heads {
		for ; n != none; n = c.tree.nodes[n].next {
			require.Same(t, &c.tree.chains.heads[i], c.tree.chains.head(c.tree.nodes[n].hash))
			require.False(t, nodes[n], "node %d is in one chain once", n)
			nodes[n] = true
		}
	}
	for i, x := range c.tree.nodes {
		if n := int32(i); x.stamp != 0 && x.hidden {
			require.False(t, nodes[n], "node %d is hidden and found", n)
			nodes[n] = true
		}
	}
	unused := 0
	for n := c.tree.unused; n != none; n = c.tree.nodes[n].next {
		require.False(t, nodes[n], "node %d is unused and found", n)
		unused++
	}
	require.Equal(t, len(c.tree.nodes), unused+len(nodes), "every node is found, hidden or unused")
	children := map[int32]int32{}
	for n := range nodes {
		x := c.tree.nodes[n]
		require.True(t, x.block != none || x.claims > 0 || x.hosted[Block] != none || x.children > 0, "node %d has nothing", n)
		children[x.parent]++
		lost := x.hidden || x.parent != none && c.tree.nodes[x.parent].lost
		require.Equal(t, lost, x.lost, "node %d is lost if it or a node above it is hidden", n)
		if x.parent == none {
			continue
		}
		require.True(t, nodes[x.parent], "node %d has no parent", n)
		require.Empty(t, x.salt)
		if x.block != none {
			above := c.tree.nodes[x.parent].block
			require.NotEqual(t, int32(none), above, "node %d has a block and its parent none", n)
			require.True(t, c.refs[x.block] == 0 || c.refs[above] > 0, "node %d is held and its parent idle", n)
		}
	}
	for n := range nodes {
		require.Equal(t, children[n], c.tree.nodes[n].children, "nodes below node %d", n)
	}
	return nodes
}

// checkBlocks: free + held + idle = total, each block in one of them.
func checkBlocks(t *testing.T, c *Cache) {
	t.Helper()
	held, idle := 0, 0
	for b := range int32(c.total) {
		free := slices.Contains(c.free, b)
		switch n := c.nodeOf[b]; {
		case c.refs[b] > 0:
			held++
			require.False(t, free, "block %d is held and free", b)
		case n != none:
			idle++
			require.False(t, free, "block %d is idle and free", b)
			require.Equal(t, b, c.tree.nodes[n].block, "an idle block is its node's own")
		default:
			require.True(t, free, "block %d is nowhere", b)
		}
	}
	require.Equal(t, c.total, held+idle+len(c.free))
	require.Equal(t, idle, c.Cached())
	require.Equal(t, idle+len(c.free), c.Free())
}

// checkIdle checks that the list has exactly the nodes whose block no table holds, each before its
// parent.
func checkIdle(t *testing.T, c *Cache, nodes map[int32]bool) {
	t.Helper()
	place, last := map[int32]int{}, int32(none)
	for n := c.idle.oldest; n != none; n = c.tree.nodes[n].idle.newer {
		require.Equal(t, last, c.tree.nodes[n].idle.older)
		place[n] = len(place)
		last = n
	}
	require.Equal(t, last, c.idle.newest)
	require.Len(t, place, c.idle.count)
	for n := range nodes {
		x := c.tree.nodes[n]
		_, listed := place[n]
		require.Equal(t, x.block != none && c.refs[x.block] == 0, listed, "node %d", n)
		if x.parent == none || !listed {
			continue
		}
		if above, idle := place[x.parent]; idle {
			require.Less(t, place[n], above, "node %d goes before its parent", n)
		}
	}
}

// checkWindows: of the window group too, free + held + idle = total, and the list has exactly the
// idle blocks. A node has at most one, and a block of the first group.
func checkWindows(t *testing.T, c *Cache, nodes map[int32]bool, tables []*Table) {
	t.Helper()
	w := &c.windows
	refs := make([]int32, w.total)
	for _, table := range tables {
		require.LessOrEqual(t, table.slid, len(table.Window))
		for i, b := range table.Window {
			require.True(t, i >= table.slid || b == none, "block %d left the window and is held", i)
			require.True(t, i < table.slid || b != none, "block %d is in the window and missing", i)
			if b != none {
				require.NotContains(t, table.Window[:i], b, "a table has a block once")
				refs[b]++
			}
		}
	}
	require.Equal(t, refs, w.refs, "references are those of the tables")
	place, last := map[int32]bool{}, int32(none)
	for b := w.front; b != none; b = w.links[b].newer {
		require.Equal(t, last, w.links[b].older)
		place[b], last = true, b
	}
	require.Equal(t, last, w.back)
	require.Len(t, place, w.idle)
	held := 0
	for b := range int32(w.total) {
		free, n := slices.Contains(w.free, b), w.nodeOf[b]
		require.Equal(t, w.refs[b] == 0 && n == none, free, "block %d is free if nothing has it", b)
		require.Equal(t, w.refs[b] == 0 && n != none, place[b], "block %d is idle if it can be found and no table has it", b)
		held += int(min(w.refs[b], 1))
		if n != none {
			require.True(t, nodes[n])
			require.Equal(t, b, c.tree.nodes[n].window)
			require.True(t, c.tree.nodes[n].block != none || c.tree.nodes[n].hosted[Block] != none)
			require.False(t, c.tree.nodes[n].lost)
		}
	}
	for n := range nodes {
		if b := c.tree.nodes[n].window; b != none {
			require.Equal(t, n, w.nodeOf[b])
		}
	}
	require.Equal(t, w.total-held, c.FreeWindow())
	require.Equal(t, w.idle, c.CachedWindow())
}

// checkTwins: the blocks of a node are its own and its twins, which are held.
func checkTwins(t *testing.T, c *Cache, nodes map[int32]bool) {
	t.Helper()
	blocks := 0
	for n := range nodes {
		x := c.tree.nodes[n]
		if x.block != none {
			require.Equal(t, n, c.nodeOf[x.block])
			blocks++
		}
		last := int32(none)
		for b := x.twin; b != none; b = c.twins[b].newer {
			require.Equal(t, last, c.twins[b].older)
			require.Equal(t, n, c.nodeOf[b])
			require.NotEqual(t, x.block, b)
			require.Positive(t, c.refs[b])
			require.Positive(t, c.refs[x.block], "a node with twins is held")
			last = b
			blocks++
		}
	}
	for _, n := range c.nodeOf {
		if n != none {
			blocks--
		}
	}
	require.Zero(t, blocks, "every block with a node is its own or a twin")
}

// checkChain: the shared blocks of a table are one way down the tree.
func checkChain(t *testing.T, c *Cache, table *Table) {
	t.Helper()
	parent := int32(none)
	for i := range table.Shared {
		n := c.nodeOf[table.Blocks[i]]
		require.NotEqual(t, int32(none), n, "block %d of a table is shared and has no node", i)
		require.Equal(t, parent, c.tree.nodes[n].parent)
		parent = n
	}
	for _, n := range table.claims {
		require.Equal(t, parent, c.tree.nodes[n].parent, "claims go on where the blocks end")
		parent = n
	}
}

func checkClaims(t *testing.T, c *Cache, nodes map[int32]bool, tables []*Table) {
	t.Helper()
	claims := map[int32]int32{}
	for _, table := range tables {
		for _, n := range table.claims {
			claims[n]++
		}
	}
	for n := range nodes {
		require.Equal(t, claims[n], c.tree.nodes[n].claims, "claims of node %d", n)
	}
}

func checkKeys(t *testing.T, c *Cache, nodes map[int32]bool) {
	t.Helper()
	count := map[uint64]keyCount{}
	for n := range nodes {
		x := c.tree.nodes[n]
		require.Equal(t, c.placeOf(&x), x.place, "node %d", n)
		require.True(t, x.place != nowhere || len(x.keys) == 0, "node %d has keys and no content", n)
		require.True(t, !x.lost || len(x.keys) == 0, "node %d has keys and nobody finds it", n)
		require.LessOrEqual(t, len(x.keys), c.maxKeys())
		for i, key := range x.keys {
			require.False(t, slices.Contains(x.keys[:i], key))
			k := count[key]
			k.add(x.place, 1)
			count[key] = k
		}
	}
	require.Equal(t, count, c.keys.nodes)
	require.LessOrEqual(t, len(c.keys.news), c.keys.limit)
}

// checkTier: an entry is free or a node's, its list has exactly those of nodes, and blocks owe what
// entries say.
func checkTier(t *testing.T, c *Cache, nodes map[int32]bool) {
	t.Helper()
	for kind := range c.tier.of {
		s := &c.tier.of[kind]
		listed := map[int32]int{}
		for _, list := range []*recentList{&s.rest, &s.intervals} {
			last, before := int32(none), len(listed)
			for e := list.oldest; e != none; e = s.links[e].newer {
				require.Equal(t, last, s.links[e].older)
				require.Same(t, list, s.list(e))
				listed[e], last = len(listed), e
			}
			require.Equal(t, last, list.newest)
			require.Equal(t, len(listed)-before, list.count)
		}
		used := 0
		for e, n := range s.nodeOf {
			e := int32(e)
			require.False(t, s.pinned[e])
			_, inList := listed[e]
			require.Equal(t, n != none, inList)
			require.Equal(t, n != none, s.phase[e] != absent)
			require.False(t, n != none && slices.Contains(s.free, e))
			if n == none {
				continue
			}
			used++
			require.True(t, nodes[n])
			require.False(t, c.tree.nodes[n].lost)
			require.Equal(t, e, c.tree.nodes[n].hosted[kind])
			if s.phase[e] == owed {
				require.Equal(t, e, c.tier.owed[s.block[e]])
			}
			if kind != int(Block) {
				require.True(t, c.tree.nodes[n].block != none || c.tree.nodes[n].hosted[Block] != none, "node %d has nothing else", n)
				continue
			}
			if above := c.tree.nodes[n].parent; above != none && c.tree.nodes[above].hosted[Block] != none && c.tree.nodes[above].block == none {
				require.Less(t, listed[e], listed[c.tree.nodes[above].hosted[Block]], "node %d goes before its parent", n)
			}
		}
		require.EqualValues(t, used, c.tierUsed[kind].Load())
		require.EqualValues(t, used+len(c.tier.of[kind].free), c.tierTotal[kind].Load())
		for n := range nodes {
			if e := c.tree.nodes[n].hosted[kind]; e != none {
				require.Equal(t, n, s.nodeOf[e])
			}
		}
	}
	for b, e := range c.tier.owed {
		if e != none {
			require.Equal(t, owed, c.tier.of[Block].phase[e])
			require.EqualValues(t, b, c.tier.of[Block].block[e])
		}
	}
}
