package kvcache

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of the caller. They corrupt nothing.
var (
	// ErrReleased: the table was released before.
	ErrReleased = errors.New("table is released")
	// ErrContent: a block of the table holds other tokens than the caller states.
	ErrContent = errors.New("block holds other tokens")
)

// Table is the blocks of one sequence, in order of position. The zero value is an empty table that
// may grow; a sequence that bypasses the prefix cache uses it and never publishes. A Table must not
// be copied. A released table stays empty.
type Table struct {
	// Blocks hold BlockSize positions each. Only the cache writes the slice. A slice that was read
	// before Grow, Own or Release is invalid after it.
	Blocks []int32
	// Shared is how many lead blocks are findable: full, and never written again. Right after
	// Match, the first Shared*BlockSize tokens need not be computed. Shared <= len(Blocks).
	Shared int

	// Window is the blocks of the window group, entry by entry for the same positions, with -1 for
	// those that were dropped. It may be shorter than Blocks.
	Window []int32

	slid     int     // entries of Window below it are absent
	matched  int     // blocks of the match that it began with
	claims   []int32 // nodes of blocks from Shared on that the sequence will compute
	keys     []Key   // keys of blocks from Shared on, or with saved states all, shortest first
	recalled bool    // Recall extended it
	released bool
}

// WindowBlocks is the number of blocks of the window group that t holds.
func (t *Table) WindowBlocks() int {
	n := 0
	for _, b := range t.Window {
		if b != none {
			n++
		}
	}
	return n
}

// Grow appends blocks to t until it covers n tokens. If too few are available, it changes nothing
// and returns false.
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
		t.Blocks = append(t.Blocks, c.allocate())
	}
	c.count()
	return true
}

// Truncate gives back the blocks of t after the shared ones. Its sequence must not have written to
// them.
func (c *Cache) Truncate(t *Table) {
	c.dropFrom(t, t.Shared)
	c.count()
}

// Fork returns another table with all blocks of t, including a partly filled last one. Before
// either sequence writes, it must call Own. Claims and keys stay with t.
func (c *Cache) Fork(t *Table) *Table {
	for _, b := range t.Blocks {
		c.refs[b]++
	}
	for _, b := range t.Window[min(t.slid, len(t.Window)):] {
		if b != none {
			c.windows.refs[b]++
		}
	}
	return &Table{
		Blocks: slices.Clone(t.Blocks), Shared: t.Shared, Window: slices.Clone(t.Window), slid: t.slid, matched: t.matched, released: t.released,
	}
}

// Own gives t exclusive use of the block of a position, before its sequence writes there (copy on
// write). If the block is shared, t gets another one: copied is true, and the caller must copy src
// to dst on the device before it writes. If none is available, ok is false and nothing has changed.
// A position after the table's blocks needs no copy.
//
// The reference to src is dropped at once, so the next call may reuse src. That is correct because
// the device works in order: the copy is submitted before, or in the same step as, everything that
// is planned later, and a step copies before it computes. A caller that splits or reorders a
// planned step must submit its copies first.
//
// Writing in a block before other shared ones abandons those: t loses the blocks after it. If the
// block is one of the Shared blocks, t also loses its claims and everything that it published from
// there on.
func (c *Cache) Own(t *Table, position int) (src, dst int32, copied, ok bool) {
	i := position / c.blockSize
	if i >= len(t.Blocks) {
		return none, none, false, true
	}
	src = t.Blocks[i]
	if !c.shared(src) {
		return none, none, false, true
	}
	if c.available() == 0 {
		return none, none, false, false
	}
	dst = c.allocate()
	c.payOff(dst)
	if i < t.Shared {
		c.unclaim(t)
		t.Shared = i
	}
	if i+1 < len(t.Blocks) && c.shared(t.Blocks[i+1]) {
		c.dropFrom(t, i+1)
	}
	t.Blocks[i] = dst
	c.drop(src)
	c.count()
	return src, dst, true, true
}

// shared reports whether block b, which a table holds, is also held by others or findable. In a
// table such blocks come first: tables with a common block share all blocks before it, as blocks or
// as twins.
func (c *Cache) shared(b int32) bool { return c.refs[b] > 1 || c.nodeOf[b] != none }

// Release gives back all blocks of t. A second release is an error and changes nothing.
func (c *Cache) Release(t *Table) error {
	if t.released {
		return ErrReleased
	}
	// Count down before anything is dropped: this finds blocks that the table lists but does not
	// hold, duplicates included, while it can still be undone.
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

// dropFrom gives back the blocks of t from index i on, in both groups, those of the first last
// first, because idleList requires children before parents.
func (c *Cache) dropFrom(t *Table, i int) {
	for j := len(t.Blocks) - 1; j >= i; j-- {
		c.drop(t.Blocks[j])
	}
	t.Blocks = t.Blocks[:i]
	for j := i; j < len(t.Window); j++ {
		if b := t.Window[j]; b != none {
			c.dropWindow(b, true)
		}
	}
	t.Window = t.Window[:min(i, len(t.Window))]
	t.slid = min(t.slid, len(t.Window))
	c.countWindows()
}
