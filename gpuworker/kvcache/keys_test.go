package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTooManyChangesAreAReset(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 1})
	c.keys.limit = 3
	a := &Table{}
	require.True(t, c.Grow(a, 5))
	c.Name(a, []Key{{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}})
	require.NoError(t, c.Publish(a, Root{}, run(1, 5), 3))
	added, removed, reset := c.Changes()
	require.Equal(t, []uint64{1, 2, 3}, added, "as many as there is room for")
	require.Empty(t, removed)
	require.False(t, reset)

	c.keys.limit = 1
	require.NoError(t, c.Publish(a, Root{}, run(1, 5), 5))
	require.NoError(t, c.Release(a))
	require.True(t, c.Grow(&Table{}, 7))
	added, removed, reset = c.Changes()
	require.Empty(t, added)
	require.Empty(t, removed)
	require.True(t, reset)
	require.Equal(t, []uint64{1}, c.All())
	added, removed, reset = c.Changes()
	require.Empty(t, added)
	require.Empty(t, removed)
	require.False(t, reset, "it is told once")
}

func TestANodeTakesSoManyKeysAndEachOnce(t *testing.T) {
	c := New(Config{Blocks: 2, BlockSize: 2})
	a := compute(t, c, Root{}, run(1, 4))
	for range 2 {
		for key := range 100 {
			c.Name(a, []Key{{Key: uint64(key), Tokens: 2}})
		}
	}
	require.Len(t, c.All(), c.maxKeys())
	check(t, c, []*Table{a})
	require.NoError(t, c.Release(a))
	require.True(t, c.Grow(&Table{}, 4))
	require.Empty(t, c.All())
}

func TestNameAcceptsKeysInAnyOrder(t *testing.T) {
	// Keys come in any order and belong to the block of their last token.
	c := New(Config{Blocks: 4, BlockSize: 4})
	a := &Table{}
	require.True(t, c.Grow(a, 16))
	c.Name(a, []Key{{9, 9}, {8, 8}, {5, 5}, {4, 4}, {1, 1}, {0, 0}, {7, -7}, {17, 17}})
	for _, tc := range []struct {
		computed int
		want     []uint64
	}{{3, nil}, {4, []uint64{1, 4}}, {7, []uint64{1, 4}}, {8, []uint64{1, 4, 5, 8}}, {16, []uint64{1, 4, 5, 8, 9}}} {
		require.NoError(t, c.Publish(a, Root{}, run(1, 16), tc.computed))
		require.Equal(t, tc.want, c.All(), "after %d tokens", tc.computed)
	}
}
