package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// run is n ids from first on.
func run(first int32, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = first + int32(i)
	}
	return ids
}

// compute plays a sequence that computes ids: it matches the cached part, and grows and publishes
// the rest.
func compute(t *testing.T, c *Cache, r Root, ids []int32) *Table {
	t.Helper()
	table := c.Match(r, ids)
	require.True(t, c.Grow(table, len(ids)))
	require.NoError(t, c.Publish(table, r, ids, len(ids)))
	return table
}

func TestBlocksForCoversWholeAndBegunBlocks(t *testing.T) {
	c := New(Config{Blocks: 1, BlockSize: 16})
	for tokens, want := range map[int]int{-1: 0, 0: 0, 1: 1, 15: 1, 16: 1, 17: 2, 32: 2, 33: 3} {
		require.Equal(t, want, c.BlocksFor(tokens), "%d tokens", tokens)
	}
	require.Equal(t, 16, c.BlockSize())
	require.Equal(t, 1, c.Total())
}

func TestATableGrowsToTheTokensAsked(t *testing.T) {
	c := New(Config{Blocks: 4, BlockSize: 16})
	table := &Table{}
	for _, step := range []struct{ tokens, blocks int }{{0, 0}, {1, 1}, {16, 1}, {17, 2}, {5, 2}, {32, 2}, {64, 4}} {
		require.True(t, c.Grow(table, step.tokens))
		require.Len(t, table.Blocks, step.blocks, "%d tokens", step.tokens)
		require.Equal(t, 4-step.blocks, c.Free())
		check(t, c, []*Table{table})
	}
}

func TestAGrowthThatDoesNotFitChangesNothing(t *testing.T) {
	c := New(Config{Blocks: 2, BlockSize: 16})
	table := &Table{}
	require.True(t, c.Grow(table, 16))
	before := table.Blocks[0]
	require.False(t, c.Grow(table, 49))
	require.Equal(t, []int32{before}, table.Blocks)
	require.Equal(t, 1, c.Free())
}

func TestACacheWithoutBlocksRefusesAndFindsNothing(t *testing.T) {
	c := New(Config{BlockSize: 1})
	table := c.Match(Root{}, []int32{1, 2})
	require.False(t, c.Grow(table, 1))
	require.True(t, c.Grow(table, 0))
	require.NoError(t, c.Publish(table, Root{}, []int32{1, 2}, 0))
	require.NoError(t, c.Release(table))
	require.Zero(t, c.Free())
}

func TestASecondReleaseIsAnErrorAndChangesNothing(t *testing.T) {
	c := New(Config{Blocks: 4, BlockSize: 2})
	table := compute(t, c, Root{}, run(1, 5))
	require.NoError(t, c.Release(table))
	require.ErrorIs(t, c.Release(table), ErrReleased)
	require.False(t, c.Grow(table, 1), "a released table does not grow")
	require.ErrorIs(t, c.Publish(table, Root{}, run(1, 5), 5), ErrReleased)
	c.Claim(table, Root{}, run(1, 5))
	c.Name(table, []Key{{Key: 1, Tokens: 2}})
	require.False(t, computing(c, Root{}, run(1, 9)))
	require.Empty(t, c.All())
	require.ErrorIs(t, c.Release(c.Fork(table)), ErrReleased, "a fork of nothing is nothing")
	check(t, c, nil)
}

func TestATableOfBlocksThatAreNotHeldIsNotReleased(t *testing.T) {
	c := New(Config{Blocks: 4, BlockSize: 2})
	table := &Table{}
	require.True(t, c.Grow(table, 4))
	for name, bad := range map[string][]int32{
		"unknown":   {9},
		"negative":  {-1},
		"free":      {3},
		"twice":     {table.Blocks[0], table.Blocks[0]},
		"half good": {table.Blocks[0], 3},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, c.Release(&Table{Blocks: bad}))
			check(t, c, []*Table{table})
		})
	}
	require.NoError(t, c.Release(table))
	check(t, c, nil)
}

func TestOwnCopiesTheBlockWrittenTo(t *testing.T) {
	// A fork shares every block, and Own copies the one that is written to.
	c := New(Config{Blocks: 5, BlockSize: 2})
	a := compute(t, c, Root{}, run(1, 5)) // two full blocks and half of one
	b := c.Fork(a)
	require.Equal(t, a.Blocks, b.Blocks)
	require.Equal(t, 2, c.Free())
	src, dst, copied, ok := c.Own(a, 5)
	require.True(t, ok)
	require.True(t, copied)
	require.Equal(t, b.Blocks[2], src)
	require.Equal(t, a.Blocks[2], dst)
	require.Equal(t, a.Blocks[:2], b.Blocks[:2])
	_, _, copied, ok = c.Own(b, 5)
	require.True(t, ok)
	require.False(t, copied, "the last holder writes where it is")
	_, _, copied, ok = c.Own(a, 6)
	require.True(t, ok)
	require.False(t, copied, "beyond the table there is nothing to copy")
	check(t, c, []*Table{a, b})
	require.NoError(t, c.Release(a))
	require.NoError(t, c.Release(b))
	check(t, c, nil)
}

func TestOwnWithoutAFreeBlockChangesNothing(t *testing.T) {
	c := New(Config{Blocks: 3, BlockSize: 2})
	a := compute(t, c, Root{}, run(1, 5))
	b := c.Fork(a)
	_, _, copied, ok := c.Own(a, 4)
	require.False(t, ok)
	require.False(t, copied)
	require.Equal(t, a.Blocks, b.Blocks)
	check(t, c, []*Table{a, b})
}

func TestOwnDropsTheBlocksAfterIt(t *testing.T) {
	// Writing below the shared blocks gives up the blocks after it.
	for name, tc := range map[string]struct {
		position, blocks, shared int
	}{
		"in the first block":       {0, 1, 0},
		"in the middle":            {3, 2, 1},
		"in the last published":    {5, 3, 2},
		"in the half full one":     {6, 4, 3},
		"in the block after":       {8, 4, 3},
		"at the end of the first":  {1, 1, 0},
		"at the start of a second": {2, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{Blocks: 9, BlockSize: 2})
			a := compute(t, c, Root{}, run(1, 7)) // three full blocks and half of one
			b := c.Fork(a)
			c.Claim(a, Root{}, run(1, 12))
			_, _, _, ok := c.Own(a, tc.position)
			require.True(t, ok)
			require.Len(t, a.Blocks, tc.blocks)
			require.Equal(t, tc.shared, a.Shared)
			check(t, c, []*Table{a, b})
			require.Equal(t, 3, b.Shared)
			require.NoError(t, c.Release(b))
			check(t, c, []*Table{a})
		})
	}
}

func TestDecodingAllocatesNothing(t *testing.T) {
	// A table allocates nothing in the middle of its last steps.
	c := New(Config{Blocks: 4096, BlockSize: 1})
	table := &Table{}
	require.True(t, c.Grow(table, 1))
	n := 1
	table.Blocks = append(make([]int32, 0, 4096), table.Blocks...)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		n++
		_, _, _, ok := c.Own(table, n-1)
		if !ok || !c.Grow(table, n) {
			t.Error("no block")
		}
	}))
}
