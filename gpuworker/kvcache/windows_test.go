package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// windowCache has blocks of 4 positions and a window of 6.
func windowCache(blocks int) *Cache {
	return New(Config{Blocks: 100, BlockSize: 4, Window: 6, WindowBlocks: blocks, HostWindowBlocks: 3})
}

// slide computes all of ids as a loop does, block by block, and returns the table.
func slide(t *testing.T, c *Cache, ids []int32, kept ...int) *Table {
	t.Helper()
	table, _ := c.MatchWindow(Root{}, ids)
	for at := table.Shared * 4; at < len(ids); {
		at = min(at+4, len(ids))
		require.True(t, c.Grow(table, at))
		require.True(t, c.GrowWindow(table, at))
		require.NoError(t, c.Publish(table, Root{}, ids, at))
		c.Slide(table, at, kept...)
		check(t, c, []*Table{table})
	}
	return table
}

// hits is how many tokens of ids are found.
func hits(t *testing.T, c *Cache, ids []int32) int {
	t.Helper()
	table, _ := c.MatchWindow(Root{}, ids)
	n := table.Shared * 4
	require.NoError(t, c.Release(table))
	return n
}

func TestSlideHoldsTheWindowAlone(t *testing.T) {
	c := windowCache(10)
	table := slide(t, c, run(1, 40))
	require.Equal(t, 8, table.slid, "position 40 sees 35 to 39")
	require.Equal(t, 2, table.WindowBlocks())
	require.Equal(t, 8, c.FreeWindow())
	require.NoError(t, c.Release(table))
	require.Equal(t, 10, c.FreeWindow())
	require.Equal(t, 10, c.CachedWindow(), "all are findable")
}

func TestMatchNeedsTheWindowBeforeItsEnd(t *testing.T) {
	c := windowCache(3)
	ids := run(1, 41)
	require.NoError(t, c.Release(slide(t, c, ids)))
	require.Equal(t, 40, hits(t, c, ids), "the end has its window")
	require.Equal(t, 0, hits(t, c, ids[:30]), "the middle lost it")
	longer := append(run(1, 41), 7, 7, 7)
	require.Equal(t, 40, hits(t, c, longer))
	table, found := c.MatchWindow(Root{}, ids[:30])
	require.Equal(t, 28, found, "blocks of the first group are there")
	require.NoError(t, c.Release(table))
}

func TestTheNewestToLeaveAWindowGoFirst(t *testing.T) {
	// With 6 blocks, the beginning of a prompt stays, since what left the window last goes first.
	c := windowCache(6)
	ids := run(1, 41)
	require.NoError(t, c.Release(slide(t, c, ids)))
	require.Equal(t, 40, hits(t, c, ids))
	require.Equal(t, 12, hits(t, c, ids[:30]))
	require.Equal(t, 8, hits(t, c, ids[:10]))
}

func TestKeptWindowsAndHitsGoLast(t *testing.T) {
	ids := run(1, 41)
	c := windowCache(6)
	require.NoError(t, c.Release(slide(t, c, ids, 20)))
	require.Equal(t, 20, hits(t, c, ids[:23]), "a kept length")
	// A prompt that parts there holds its window, which stays when it goes on.
	other := append(run(1, 20), run(100, 30)...)
	require.NoError(t, c.Release(slide(t, c, other)))
	require.Equal(t, 20, hits(t, c, ids[:23]), "a hit")
	require.Equal(t, 48, hits(t, c, other))
}

func TestRefusedWindowGrowthChangesNothing(t *testing.T) {
	c := windowCache(3)
	a, b := &Table{}, &Table{}
	require.True(t, c.GrowWindow(a, 8))
	require.False(t, c.GrowWindow(b, 5))
	require.Empty(t, b.Window)
	require.True(t, c.GrowWindow(b, 4))
	require.True(t, c.GrowWindow(b, 3))
	check(t, c, []*Table{a, b})
	fork := c.Fork(a)
	_, _, _, ok := c.OwnWindow(fork, 7)
	require.False(t, ok, "no block for a copy")
	require.NoError(t, c.Release(b))
	src, dst, copied, ok := c.OwnWindow(fork, 7)
	require.True(t, copied && ok && src == a.Window[1] && dst == fork.Window[1])
	_, _, copied, ok = c.OwnWindow(fork, 7)
	require.True(t, !copied && ok, "it has its own")
	_, _, copied, ok = c.OwnWindow(fork, 8)
	require.True(t, !copied && ok, "after its blocks")
	check(t, c, []*Table{a, fork})
	require.NoError(t, c.Release(a))
	require.False(t, c.GrowWindow(a, 4), "a released table")
}

func TestForgottenWindowsAreNotFound(t *testing.T) {
	c := windowCache(10)
	ids := run(1, 41)
	table := slide(t, c, ids)
	c.Forget(table)
	check(t, c, []*Table{table})
	require.NoError(t, c.Release(table))
	require.Equal(t, 10, c.FreeWindow())
	require.Zero(t, c.CachedWindow())
	require.Zero(t, hits(t, c, ids))
}

func TestWindowsGoWithTheBlocksOfTheirNodes(t *testing.T) {
	c := New(Config{Blocks: 5, BlockSize: 4, Window: 6, WindowBlocks: 10})
	require.NoError(t, c.Release(slide(t, c, run(1, 20))))
	require.Equal(t, 5, c.CachedWindow())
	table := slide(t, c, run(100, 12))
	check(t, c, []*Table{table})
	require.Equal(t, 2, c.CachedWindow()-1, "two of the old prefix, and one of the new")
	require.NoError(t, c.Release(table))
}

func TestHostBlocksOfTheWindowGroup(t *testing.T) {
	c := windowCache(3)
	require.Equal(t, 3, c.FreeHostWindow())
	blocks, ok := c.AllocHostWindow(2)
	require.True(t, ok)
	_, ok = c.AllocHostWindow(2)
	require.False(t, ok)
	require.Equal(t, 1, c.FreeHostWindow())
	require.NoError(t, c.ReleaseHostWindow(blocks))
	require.Error(t, c.ReleaseHostWindow(blocks))
	require.Equal(t, 3, c.FreeHostWindow())
}
