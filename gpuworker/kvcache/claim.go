package kvcache

// Claim says that the sequence of t is going to compute ids, so that others who want the same prefix can wait for it. It takes the
// place of what t claimed before, and leaves out what t has published. A claim ends block by block as t publishes, and with
// Release.
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
		w = c.tree.at(n)
	}
}

// Look remembers how far Await has looked for a root and ids. The zero value has not looked.
type Look struct {
	node   int32  // of block blocks-1, if blocks > 0 and the node has this stamp
	stamp  uint64 // else it has gone, and looking begins anew
	blocks int
}

// Computing says whether somebody is computing a longer prefix of ids than Match finds, by one whole block at least: who waits for
// that has less to compute. A sequence asks before it claims, or hears of itself.
func (c *Cache) Computing(r Root, ids []int32) bool { return c.Await(&Look{}, r, ids) > 0 }

// Await is Computing for those who ask again and again: l is of r and ids, or of ids that these continue, and all questions of one
// look together cost one way down the tree. It gives how many tokens lead up to a block that somebody is computing and with it;
// 0: nobody is.
func (c *Cache) Await(l *Look, r Root, ids []int32) (tokens int) {
	w := c.tree.begin(r)
	if l.blocks > 0 && c.tree.nodes[l.node].stamp == l.stamp {
		w = c.tree.at(l.node)
	} else {
		*l = Look{}
	}
	for {
		// Where a node has a block, all above it have one.
		if l.blocks > 0 && c.tree.nodes[l.node].block == none {
			return l.blocks * c.blockSize
		}
		if l.blocks >= c.usable(len(ids)) {
			return 0
		}
		n, _ := c.tree.step(w, c.part(ids, l.blocks))
		if n == none {
			return 0
		}
		*l = Look{node: n, stamp: c.tree.nodes[n].stamp, blocks: l.blocks + 1}
		w = c.tree.at(n)
	}
}

// claimedNext is where step leads from w by the ids of a block. Where t has claimed them, that is not looked for again.
func (c *Cache) claimedNext(t *Table, w walk, ids []int32) (n int32, hash uint64) {
	if len(t.claims) > 0 {
		n := t.claims[0]
		if x := &c.tree.nodes[n]; !x.hidden && c.tree.same(n, w, ids) {
			return n, x.hash
		}
	}
	return c.tree.step(w, ids)
}

// claimed ends t's claim on node n, which t has just published. One that publishes other tokens than it claimed has no claim left.
func (c *Cache) claimed(t *Table, n int32) {
	switch {
	case len(t.claims) == 0:
	case t.claims[0] == n:
		c.tree.nodes[n].claims--
		t.claims = t.claims[1:]
	default:
		c.unclaim(t)
	}
}

// unclaim ends all claims of t, the last first: a node goes when nothing stands below it.
func (c *Cache) unclaim(t *Table) {
	for i := len(t.claims) - 1; i >= 0; i-- {
		n := t.claims[i]
		c.tree.nodes[n].claims--
		c.tree.prune(n)
	}
	t.claims = nil
}
