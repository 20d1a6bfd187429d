package kvcache

import "fmt"

// usable is how many lead blocks of a prompt of n tokens may come from the cache: one token at least is computed, because what
// follows it is sampled from its logits.
func (c *Cache) usable(n int) int { return max(0, (n-1)/c.blockSize) }

// Match returns a table of the blocks that hold the longest known prefix of ids, in whole blocks and never all of ids. The
// table may be empty; it is to be released in any case.
func (c *Cache) Match(r Root, ids []int32) *Table {
	t := &Table{}
	w := c.tree.begin(r)
	for i := range c.usable(len(ids)) {
		n, _ := c.tree.step(w, c.part(ids, i))
		if n == none || c.tree.nodes[n].block == none {
			break
		}
		if t.Blocks == nil {
			t.Blocks = make([]int32, 0, c.BlocksFor(len(ids))+1)
		}
		t.Blocks = append(t.Blocks, c.hold(n))
		w = c.tree.at(n)
	}
	t.Shared = len(t.Blocks)
	c.stats.looked(len(ids), t.Shared*c.blockSize)
	c.count()
	return t
}

// Publish makes the blocks of t findable that are full of the first computed ids. Their keys and values are in the cache, or will
// be by steps already submitted; r and ids are the same as before, longer perhaps. Where the tree has the same tokens in a block
// that somebody holds, t keeps its own block beside it, and what follows is published behind the tree's.
//
// A table that is released, or that does not cover computed tokens, publishes nothing and is an error. ErrContent: another
// table has published one of the blocks with other ids; those before it are published.
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
			c.settle(n, b)
		case c.nodeOf[b] == none:
			c.settle(n, b)
		}
		t.Shared = i + 1
		c.claimed(t, n)
		c.attach(t, i, n)
		w = c.tree.at(n)
	}
	return nil
}

// Forget makes the shared blocks of t, and all that continues them, findable no more: what they hold is not to be trusted. Who
// holds some keeps them; the rest is evicted in its turn. Their keys are withdrawn, those of other tables included, so that no
// scheduler routes by a prefix that Match does not find.
func (c *Cache) Forget(t *Table) {
	if t.Shared == 0 {
		return
	}
	for _, n := range c.tree.hide(c.nodeOf[t.Blocks[0]]) {
		c.keys.detachAll(&c.tree.nodes[n])
	}
}

// end stands where the shared blocks of t end.
func (c *Cache) end(t *Table, r Root) walk {
	if t.Shared == 0 {
		return c.tree.begin(r)
	}
	return c.tree.at(c.nodeOf[t.Blocks[t.Shared-1]])
}

// part is the ids of block i.
func (c *Cache) part(ids []int32, i int) []int32 { return ids[i*c.blockSize : (i+1)*c.blockSize] }
