package kvcache

// Claim announces that the sequence of t will compute ids, so that others can wait for the prefix
// instead of computing it too. It replaces the earlier claim of t. A claim ends block by block with
// Publish, and with Release.
func (c *Cache) Claim(t *Table, r Root, ids []int32) {
	if t.released {
		return
	}
	c.unclaim(t)
	w := c.end(t, r)
	for i := t.Shared; i < len(ids)/c.blockSize; i++ {
		n, hash := c.tree.step(w, c.part(ids, i))
		if n == none {
			n = c.tree.add(w, hash, c.part(ids, i))
		}
		c.tree.nodes[n].claims++
		t.claims = append(t.claims, n)
		w = c.tree.walkFrom(n)
	}
}

// Cursor remembers how far Await has searched for a root and ids. The zero value starts at the
// root.
type Cursor struct {
	node   int32  // node of block blocks-1, if blocks > 0
	stamp  uint64 // its stamp; if that differs, the search starts again
	blocks int
}

// Await returns the length in tokens of a longer prefix of ids than Match would find, up to the
// first block that is claimed and not yet published; 0: no such block. A sequence that waits for it
// has less to compute. It must ask before it claims itself.
//
// All calls with one cursor must be for the same root and for ids that continue earlier ones.
// Together they walk down the tree once.
func (c *Cache) Await(l *Cursor, r Root, ids []int32) (tokens int) {
	w := c.tree.root(r)
	if l.blocks > 0 && c.tree.nodes[l.node].stamp == l.stamp {
		w = c.tree.walkFrom(l.node)
	} else {
		*l = Cursor{}
	}
	for {
		// Where a node has a block, all above it have one. A block that the host tier has without a
		// claim is not computed, and may be recalled.
		if l.blocks > 0 && c.tree.nodes[l.node].block == none {
			if x := &c.tree.nodes[l.node]; x.claims > 0 {
				return l.blocks * c.blockSize
			} else if x.hosted[Block] == none {
				return 0
			}
		}
		if l.blocks >= c.usable(len(ids)) {
			return 0
		}
		n, _ := c.tree.step(w, c.part(ids, l.blocks))
		if n == none {
			return 0
		}
		*l = Cursor{node: n, stamp: c.tree.nodes[n].stamp, blocks: l.blocks + 1}
		w = c.tree.walkFrom(n)
	}
}

// claimedNext is step for a sequence that may have claimed the next block, which saves the search.
func (c *Cache) claimedNext(t *Table, w walk, ids []int32) (n int32, hash uint64) {
	if len(t.claims) > 0 {
		n := t.claims[0]
		if x := &c.tree.nodes[n]; !x.hidden && c.tree.same(n, w, ids) {
			return n, x.hash
		}
	}
	return c.tree.step(w, ids)
}

// endClaim ends t's claim on node n, which it published. If it published other tokens than it
// claimed, all of its claims end.
func (c *Cache) endClaim(t *Table, n int32) {
	switch {
	case len(t.claims) == 0:
	case t.claims[0] == n:
		c.tree.nodes[n].claims--
		t.claims = t.claims[1:]
	default:
		c.unclaim(t)
	}
}

// unclaim ends all claims of t, last first, because a node can be removed only without children.
func (c *Cache) unclaim(t *Table) {
	for i := len(t.claims) - 1; i >= 0; i-- {
		n := t.claims[i]
		c.tree.nodes[n].claims--
		c.noteGap(n)
		c.tree.prune(n)
	}
	t.claims = nil
}
