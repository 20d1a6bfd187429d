package kvcache

import "fmt"

// usable is how many lead blocks of a prompt of n tokens may come from the cache. At least one
// token is computed, because the next one is sampled from its logits.
func (c *Cache) usable(n int) int { return max(0, (n-1)/c.blockSize) }

// Match returns a table with the longest cached prefix of ids, in whole blocks and never all of
// ids. The table may be empty. The caller must release it.
func (c *Cache) Match(r Root, ids []int32) *Table {
	t := &Table{}
	w := c.tree.root(r)
	for i := range c.usable(len(ids)) {
		n, _ := c.tree.step(w, c.part(ids, i))
		if n == none || c.tree.nodes[n].block == none {
			break
		}
		if t.Blocks == nil {
			t.Blocks = make([]int32, 0, c.BlocksFor(len(ids))+1)
		}
		t.Blocks = append(t.Blocks, c.hold(n))
		w = c.tree.walkFrom(n)
	}
	t.Shared = len(t.Blocks)
	c.stats.recordMatch(len(ids), t.Shared*c.blockSize)
	c.count()
	return t
}

// Publish makes the blocks of t findable that are full of the first computed ids. Their keys and
// values are written, or will be by steps already submitted. r and ids must be the same as in
// earlier calls, or longer. If the tree already has these tokens in a block that is held, t keeps
// its own block as a twin.
//
// It is an error if the table is released or does not cover the computed tokens; then nothing is
// published. ErrContent: another table published one of the blocks with other ids; the blocks
// before it are published.
func (c *Cache) Publish(t *Table, r Root, ids []int32, computed int) error {
	full := computed / c.blockSize
	switch {
	case t.released:
		return fmt.Errorf("publish %d tokens: %w", computed, ErrReleased)
	case computed > len(ids) || full > len(t.Blocks):
		return fmt.Errorf("publish %d tokens of %d with %d blocks of %d: give the ids and grow the table first", computed, len(ids),
			len(t.Blocks), c.blockSize)
	case full <= t.Shared:
		return nil
	}
	w := c.end(t, r)
	defer c.count()
	for i := t.Shared; i < full; i++ {
		part := c.part(ids, i)
		n, hash := c.claimedNext(t, w, part)
		b := t.Blocks[i]
		switch {
		case c.nodeOf[b] != none && c.nodeOf[b] != n:
			return fmt.Errorf("publish block %d, which has tokens %d to %d: %w", b, i*c.blockSize, (i+1)*c.blockSize-1, ErrContent)
		case n == none:
			n = c.tree.add(w, hash, part)
			c.assign(n, b)
		case c.nodeOf[b] == none:
			c.assign(n, b)
		}
		t.Shared = i + 1
		c.endClaim(t, n)
		c.publishWindow(t, i, n)
		c.attach(t, i, n)
		w = c.tree.walkFrom(n)
	}
	return nil
}

// Forget makes the shared blocks of t, and everything that continues them, unfindable, because
// their content is not trustworthy. Tables that hold such blocks keep them; the others are evicted
// in LRU order. Their keys are withdrawn, so that no scheduler routes by a prefix that Match does
// not find.
func (c *Cache) Forget(t *Table) {
	if t.Shared == 0 {
		return
	}
	for _, n := range c.tree.hide(c.nodeOf[t.Blocks[0]]) {
		x := &c.tree.nodes[n]
		if x.state != 0 {
			c.loseState(x.state)
		}
		if x.window != none {
			c.loseWindow(x.window)
		}
		for kind, e := range x.hosted {
			if x.stamp != 0 && e != none && c.tree.nodes[n].hosted[kind] == e {
				c.loseEntry(Kind(kind), e)
			}
		}
		c.rekey(n)
	}
}

// end is the position after the shared blocks of t.
func (c *Cache) end(t *Table, r Root) walk {
	if t.Shared == 0 {
		return c.tree.root(r)
	}
	return c.tree.walkFrom(c.nodeOf[t.Blocks[t.Shared-1]])
}

// part is the ids of block i.
func (c *Cache) part(ids []int32, i int) []int32 { return ids[i*c.blockSize : (i+1)*c.blockSize] }
