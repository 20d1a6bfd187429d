package kvcache

import (
	"errors"
	"fmt"
	"slices"
)

// Mistakes of the caller, which corrupt nothing.
var (
	// ErrReleased: the table was given back already.
	ErrReleased = errors.New("table is released")
	// ErrContent: a block of the table holds other tokens than the caller says.
	ErrContent = errors.New("block holds other tokens")
)

// Table is the blocks of one sequence, in order of position. The zero value has none and is ready to grow: a sequence that
// bypasses the prefix cache begins with it, and never publishes. Tables are not copied; a released one covers nothing and stays so.
type Table struct {
	// Blocks hold the sequence's positions, BlockSize each: what a segment names. The cache alone writes it, and a slice read
	// before Grow, Own or Release is worth nothing after it.
	Blocks []int32
	// Shared is how many lead blocks others can find or have found: they are full and nobody writes to them. Right after
	// Match, Shared*BlockSize tokens need not be computed. Shared <= len(Blocks).
	Shared int

	claims   []int32 // nodes of the blocks from Shared on that the sequence is going to compute
	keys     []Key   // those of blocks from Shared on, shortest first
	released bool
}

// Grow appends blocks to t until it covers n tokens. When too few are available it changes nothing and returns false.
func (c *Cache) Grow(t *Table, n int) bool {
	need := c.BlocksFor(n) - len(t.Blocks)
	switch {
	case t.released:
		return false
	case need <= 0:
		return true
	case need > c.available():
		return false
	}
	t.Blocks = slices.Grow(t.Blocks, need)
	for range need {
		t.Blocks = append(t.Blocks, c.take())
	}
	c.count()
	return true
}

// Fork returns another table with all blocks of t, the last one included although it may be half full. Before either sequence
// writes, it asks for a block of its own with Own. Claims and keys stay with t.
func (c *Cache) Fork(t *Table) *Table {
	for _, b := range t.Blocks {
		c.refs[b]++
	}
	return &Table{Blocks: slices.Clone(t.Blocks), Shared: t.Shared, released: t.released}
}

// Own makes the block of a position >= 0 the sequence's alone, before the sequence writes there. If others hold or can find the
// block, t gets another in its place: copy is true, and the caller has the device copy src to dst before it writes. If none is
// available, ok is false and nothing has changed. A position beyond the table's blocks is nobody's, and needs no copy.
//
// The reference to src is given back at once, so src may be handed out again by the very next call. That is right because the
// device works in the order of submission: the copy is submitted before, or in the same step as, whatever is planned after this
// call, and a step copies before it computes. A caller that splits or reorders a planned step submits its copies first.
//
// To write in a block before others that are shared is to give those up: t loses the blocks behind, and where the position is in
// one of the Shared blocks also its claims and its part in what is published from there on.
func (c *Cache) Own(t *Table, position int) (src, dst int32, copied, ok bool) {
	i := position / c.blockSize
	if i >= len(t.Blocks) {
		return none, none, false, true
	}
	src = t.Blocks[i]
	if !c.othersSee(src) {
		return none, none, false, true
	}
	if c.available() == 0 {
		return none, none, false, false
	}
	dst = c.take()
	if i < t.Shared {
		c.unclaim(t)
		t.Shared = i
	}
	if i+1 < len(t.Blocks) && c.othersSee(t.Blocks[i+1]) {
		c.dropFrom(t, i+1)
	}
	t.Blocks[i] = dst
	c.drop(src)
	c.count()
	return src, dst, true, true
}

// othersSee says whether others hold block b, which one table holds, or can find it. Of a table's blocks the lead ones are so:
// tables that have one block in common have all before it in common too, as blocks or as twins.
func (c *Cache) othersSee(b int32) bool { return c.refs[b] > 1 || c.nodeOf[b] != none }

// Release gives back all that t holds. A second release is an error and changes nothing.
func (c *Cache) Release(t *Table) error {
	if t.released {
		return ErrReleased
	}
	for i, b := range t.Blocks {
		if b < 0 || int(b) >= c.total || c.refs[b] < 1 {
			for _, back := range t.Blocks[:i] {
				c.refs[back]++
			}
			return fmt.Errorf("release block %d of %d: the table does not hold it", b, c.total)
		}
		c.refs[b]--
	}
	for _, b := range t.Blocks {
		c.refs[b]++
	}
	c.unclaim(t)
	c.dropFrom(t, 0)
	*t = Table{released: true}
	c.count()
	return nil
}

// dropFrom gives back the blocks of t from index i on, the last first: idleList wants what continues a node before the node.
func (c *Cache) dropFrom(t *Table, i int) {
	for j := len(t.Blocks) - 1; j >= i; j-- {
		c.drop(t.Blocks[j])
	}
	t.Blocks = t.Blocks[:i]
}
