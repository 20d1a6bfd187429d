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

// Computing says whether somebody is computing a longer prefix of ids than Match finds, by one whole block at least: who waits for
// that has less to compute. A sequence asks before it claims, or hears of itself.
func (c *Cache) Computing(r Root, ids []int32) bool {
	w := c.tree.begin(r)
	for i := range c.usable(len(ids)) {
		n, _ := c.tree.step(w, c.part(ids, i))
		switch {
		case n == none:
			return false
		case c.tree.nodes[n].block == none:
			return true
		}
		w = c.tree.at(n)
	}
	return false
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
