package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMatchLeavesOneTokenToCompute(t *testing.T) {
	// Match finds whole blocks and leaves one token to compute.
	c := New(Config{Blocks: 16, BlockSize: 4})
	require.NoError(t, c.Release(compute(t, c, Root{}, run(1, 12))))
	other := append(run(1, 6), 99, 8, 9, 10, 11, 12, 13)
	for name, tc := range map[string]struct {
		ids    []int32
		shared int
	}{
		"nothing asked":               {nil, 0},
		"one token":                   {run(1, 1), 0},
		"one block, whole":            {run(1, 4), 0},
		"a block and a token":         {run(1, 5), 1},
		"two blocks, whole":           {run(1, 8), 1},
		"two blocks and a token":      {run(1, 9), 2},
		"all that is cached":          {run(1, 12), 2},
		"all that is cached and more": {run(1, 13), 3},
		"far more than is cached":     {run(1, 40), 3},
		"another beginning":           {run(2, 12), 0},
		"divergence inside a block":   {other, 1},
	} {
		t.Run(name, func(t *testing.T) {
			table := c.Match(Root{}, tc.ids)
			require.Equal(t, tc.shared, table.Shared)
			require.Len(t, table.Blocks, tc.shared)
			check(t, c, []*Table{table})
			require.NoError(t, c.Release(table))
			check(t, c, nil)
		})
	}
}

func TestPrefixesMeetOnlyUnderTheSameSaltAndMarks(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	ids := []int32{1, 2, 3 | Decoded, 4 | Decoded, 5}
	require.NoError(t, c.Release(compute(t, c, Root{Salt: "a"}, ids)))
	for name, tc := range map[string]struct {
		salt   string
		ids    []int32
		shared int
	}{
		"same":           {"a", ids, 2},
		"no salt":        {"", ids, 0},
		"another salt":   {"b", ids, 0},
		"unmarked":       {"a", []int32{1, 2, 3, 4, 5}, 1},
		"half marked":    {"a", []int32{1, 2, 3 | Decoded, 4, 5}, 1},
		"more is marked": {"a", []int32{1, 2 | Decoded, 3 | Decoded, 4 | Decoded, 5}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := c.Match(Root{Salt: tc.salt}, tc.ids)
			require.Equal(t, tc.shared, table.Shared)
			require.NoError(t, c.Release(table))
		})
	}
}

func TestTwinsPublishOneChain(t *testing.T) {
	// Two sequences that compute the same tokens keep their blocks and publish one chain.
	c := New(Config{Blocks: 16, BlockSize: 2})
	a, b := &Table{}, &Table{}
	for _, table := range []*Table{a, b} {
		require.True(t, c.Grow(table, 8))
	}
	ids := run(1, 8)
	require.NoError(t, c.Publish(a, Root{}, ids, 4))
	own := append([]int32{}, b.Blocks...)
	require.NoError(t, c.Publish(b, Root{}, ids, 8))
	require.Equal(t, own, b.Blocks, "no block is swapped under a table")
	check(t, c, []*Table{a, b})

	found := c.Match(Root{}, run(1, 9))
	require.Equal(t, []int32{a.Blocks[0], a.Blocks[1], b.Blocks[2], b.Blocks[3]}, found.Blocks)
	require.NoError(t, c.Release(found))

	require.NoError(t, c.Release(a))
	check(t, c, []*Table{b})
	require.Equal(t, 12, c.Free(), "what a computed in vain is free, and the chain is in b's blocks")
	found = c.Match(Root{}, run(1, 9))
	require.Equal(t, own, found.Blocks)
	check(t, c, []*Table{b, found})
}

func TestATwinOfAnIdleBlockTakesItsPlace(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2})
	late := &Table{}
	require.True(t, c.Grow(late, 4))
	require.NoError(t, c.Release(compute(t, c, Root{}, run(1, 4))))
	require.Equal(t, 2, c.Cached())
	require.NoError(t, c.Publish(late, Root{}, run(1, 4), 4))
	require.Zero(t, c.Cached())
	require.Equal(t, 6, c.Free())
	check(t, c, []*Table{late})
}

func TestOneSequenceCanAlwaysHaveTheWholeCache(t *testing.T) {
	c := New(Config{Blocks: 6, BlockSize: 2})
	a := &Table{}
	require.True(t, c.Grow(a, 6))
	b := compute(t, c, Root{}, run(1, 6))
	require.NoError(t, c.Publish(a, Root{}, run(1, 6), 6))
	require.NoError(t, c.Release(b))
	require.True(t, c.Grow(a, 12), "twins that nobody holds do not stand in the way")
	require.NoError(t, c.Publish(a, Root{}, run(1, 12), 12))
	check(t, c, []*Table{a})
}

func TestPublishRefusesWhatTheTableCannotHave(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2})
	a := &Table{}
	require.True(t, c.Grow(a, 3))
	require.ErrorContains(t, c.Publish(a, Root{}, run(1, 3), 4), "publish 4 tokens of 3 with 2 blocks of 2")
	require.ErrorContains(t, c.Publish(a, Root{}, run(1, 9), 6), "publish 6 tokens of 9 with 2 blocks of 2")
	require.NoError(t, c.Publish(a, Root{}, nil, -1))
	b := c.Fork(a)
	require.NoError(t, c.Publish(a, Root{}, run(1, 4), 4))
	require.NoError(t, c.Publish(b, Root{}, run(1, 4), 2))
	require.ErrorIs(t, c.Publish(b, Root{}, []int32{1, 2, 3, 5}, 4), ErrContent)
	require.Equal(t, 1, b.Shared)
	require.NoError(t, c.Publish(b, Root{}, run(1, 4), 4))
	check(t, c, []*Table{a, b})
}

func TestEvictionTakesTheLeavesUsedLongestAgo(t *testing.T) {
	c := New(Config{Blocks: 6, BlockSize: 1})
	require.NoError(t, c.Release(compute(t, c, Root{}, []int32{1, 2, 3})))
	require.NoError(t, c.Release(compute(t, c, Root{}, []int32{7, 8, 9})))
	require.NoError(t, c.Release(c.Match(Root{}, []int32{1, 2, 3, 4}))) // the first is the younger now
	lengths := func() (first, second int) {
		for i, ids := range [][]int32{{1, 2, 3, 4}, {7, 8, 9, 10}} {
			n := 0
			w := c.tree.root(Root{})
			for _, id := range ids {
				next, _ := c.tree.step(w, []int32{id})
				if next == none {
					break
				}
				n, w = n+1, c.tree.walkFrom(next)
			}
			if i == 0 {
				first = n
			} else {
				second = n
			}
		}
		return first, second
	}
	table := &Table{}
	for i, want := range [][2]int{{3, 2}, {3, 1}, {3, 0}, {2, 0}, {1, 0}, {0, 0}} {
		require.True(t, c.Grow(table, i+1))
		first, second := lengths()
		require.Equal(t, want, [2]int{first, second}, "after %d blocks", i+1)
		check(t, c, []*Table{table})
	}
	require.Equal(t, uint64(6), c.Stats().Evictions)
}

func TestStatsCountLookupsHitsAndTokens(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2})
	require.NoError(t, c.Release(compute(t, c, Root{}, run(1, 4))))
	require.NoError(t, c.Release(c.Match(Root{}, run(1, 6))))
	require.NoError(t, c.Release(c.Match(Root{}, run(9, 6))))
	require.Equal(t, Stats{Lookups: 3, Hits: 1, TokensLooked: 16, TokensHit: 4}, c.Stats())
}

func TestPrefixesWithEqualHashesDiffer(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	c.tree.hash = func(uint64, []int32) uint64 { return 1 }
	a := compute(t, c, Root{}, []int32{1, 2, 3, 4})
	b := compute(t, c, Root{}, []int32{3, 4, 1, 2})
	s := compute(t, c, Root{Salt: "s"}, []int32{1, 2, 3, 4})
	check(t, c, []*Table{a, b, s})
	for name, tc := range map[string]struct {
		salt string
		ids  []int32
		want []int32
	}{
		"the first":              {"", []int32{1, 2, 3, 4, 5}, a.Blocks},
		"the second":             {"", []int32{3, 4, 1, 2, 5}, b.Blocks},
		"the salted":             {"s", []int32{1, 2, 3, 4, 5}, s.Blocks},
		"a mixture":              {"", []int32{1, 2, 1, 2, 5}, a.Blocks[:1]},
		"what nobody computed":   {"", []int32{4, 3, 2, 1, 0}, []int32{}},
		"under a salt of nobody": {"t", []int32{1, 2, 3, 4, 5}, []int32{}},
	} {
		t.Run(name, func(t *testing.T) {
			found := c.Match(Root{Salt: tc.salt}, tc.ids)
			require.Equal(t, tc.want, append([]int32{}, found.Blocks...))
			require.NoError(t, c.Release(found))
		})
	}
	left := []*Table{b, a, s}
	for len(left) > 0 {
		require.NoError(t, c.Release(left[0]))
		left = left[1:]
		check(t, c, left)
	}
	require.True(t, c.Grow(&Table{}, 20), "nodes leave a chain of equal hashes at every place of it")
	require.Len(t, liveNodes(t, c), 6)
}

func TestWhatIsForgottenIsFoundNoMore(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	long := compute(t, c, Root{}, run(1, 8))
	c.Name(long, []Key{{Key: 1, Tokens: 2}, {Key: 2, Tokens: 8}})
	holder := c.Match(Root{}, run(1, 7)) // three blocks of it
	bad := c.Match(Root{}, run(1, 5))
	c.Claim(bad, Root{}, append(run(1, 4), 9, 9))
	require.Equal(t, []uint64{1, 2}, c.All())
	var l Cursor
	require.Equal(t, 6, c.Await(&l, Root{}, append(run(1, 4), 9, 9, 9)))

	c.Forget(bad)
	c.Forget(bad)
	require.NoError(t, c.Release(bad))
	require.Zero(t, c.Await(&l, Root{}, append(run(1, 4), 9, 9, 9)))
	require.Empty(t, c.All(), "the keys of the blocks behind it, which others hold, are withdrawn too")
	require.Empty(t, c.Match(Root{}, run(1, 9)).Blocks)

	// Another table computes the same and is found; holders of the old blocks continue.
	again := compute(t, c, Root{}, run(1, 4))
	require.NotEqual(t, again.Blocks, holder.Blocks[:2])
	require.True(t, c.Grow(holder, 8))
	require.NoError(t, c.Publish(holder, Root{}, run(1, 8), 8))
	found := c.Match(Root{}, run(1, 9))
	require.Equal(t, again.Blocks, found.Blocks)
	for _, x := range []*Table{again, found, holder, long} {
		require.NoError(t, c.Release(x))
	}
	require.Equal(t, 16, c.Free())
	all := &Table{}
	require.True(t, c.Grow(all, 32))
	requireNoNodes(t, c)
	require.Empty(t, c.All())
	require.NoError(t, c.Release(all))
	check(t, c, nil)
	c.Forget(&Table{})
}
