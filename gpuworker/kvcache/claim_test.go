package kvcache

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOthersWaitForWhatIsBeingComputed(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	ids := run(1, 7)
	a := c.Match(Root{}, ids)
	require.False(t, computing(c, Root{}, ids))
	c.Claim(a, Root{}, ids)
	check(t, c, []*Table{a})
	for name, tc := range map[string]struct {
		root Root
		ids  []int32
		want bool
	}{
		"the same":                      {Root{}, ids, true},
		"a block of it and more":        {Root{}, append(run(1, 2), 9), true},
		"a block of it, whole":          {Root{}, run(1, 2), false},
		"less than a block":             {Root{}, run(1, 1), false},
		"divergence in the first block": {Root{}, []int32{1, 9, 3, 4}, false},
		"another salt":                  {Root{Salt: "s"}, ids, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, computing(c, tc.root, tc.ids)) })
	}
	require.True(t, c.Grow(a, 7))
	require.NoError(t, c.Publish(a, Root{}, ids, 4))
	check(t, c, []*Table{a})
	require.True(t, computing(c, Root{}, ids), "the third block is still to come")
	require.False(t, computing(c, Root{}, run(1, 5)), "what it can use is there")
	require.NoError(t, c.Publish(a, Root{}, ids, 7))
	require.False(t, computing(c, Root{}, ids))
	require.NoError(t, c.Release(a))
	check(t, c, nil)
}

func TestAClaimEndsWithItsTable(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	a, b := &Table{}, &Table{}
	c.Claim(a, Root{}, run(1, 4))
	c.Claim(b, Root{}, run(1, 8))
	require.NoError(t, c.Release(b))
	check(t, c, []*Table{a})
	require.True(t, computing(c, Root{}, run(1, 3)))
	require.True(t, computing(c, Root{}, run(1, 9)))
	require.NoError(t, c.Release(a))
	require.False(t, computing(c, Root{}, run(1, 9)))
	requireNoNodes(t, c)
}

func TestAClaimTakesThePlaceOfTheOneBefore(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 2})
	a := &Table{}
	for _, n := range []int{0, 1, 4, 4, 9, 3} {
		c.Claim(a, Root{}, run(1, n))
		check(t, c, []*Table{a})
		require.Len(t, a.claims, n/2)
	}
	require.True(t, computing(c, Root{}, append(run(1, 2), 9)))
	c.Claim(a, Root{}, run(7, 3))
	require.False(t, computing(c, Root{}, append(run(1, 2), 9)))
	require.True(t, computing(c, Root{}, run(7, 3)))
}

func TestPublishingOtherTokensEndsTheClaim(t *testing.T) {
	// A table that publishes other tokens than it claimed has no claim left.
	c := New(Config{Blocks: 16, BlockSize: 2})
	a := &Table{}
	c.Claim(a, Root{}, run(1, 6))
	require.True(t, c.Grow(a, 6))
	require.NoError(t, c.Publish(a, Root{}, append(run(1, 3), 9, 9, 9), 6))
	check(t, c, []*Table{a})
	require.False(t, computing(c, Root{}, run(1, 7)))
}

// A claimed prefix may be published by others, released and evicted, while the claim stands.
func TestClaimOutlivesEviction(t *testing.T) {
	c := New(Config{Blocks: 4, BlockSize: 2})
	claimer := &Table{}
	c.Claim(claimer, Root{}, run(1, 8))
	require.NoError(t, c.Release(compute(t, c, Root{}, run(1, 6))))
	c.Name(claimer, []Key{{Key: 5, Tokens: 1}})
	require.Empty(t, c.All(), "the claimer has published nothing")
	require.Equal(t, 3, c.Cached())
	check(t, c, []*Table{claimer})
	require.True(t, c.Grow(claimer, 8))
	check(t, c, []*Table{claimer})
	require.True(t, computing(c, Root{}, run(1, 8)))
	require.NoError(t, c.Publish(claimer, Root{}, run(1, 8), 8))
	require.Equal(t, []uint64{5}, c.All())
	check(t, c, []*Table{claimer})
}

func TestAwaitHashesOnlyNewBlocks(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2})
	ids, looked := run(1, 9), 0
	a := c.Match(Root{}, ids)
	c.Claim(a, Root{}, ids[:6])
	require.True(t, c.Grow(a, 8))
	hash := c.tree.hash
	c.tree.hash = func(parent uint64, ids []int32) uint64 { looked++; return hash(parent, ids) }
	var l Cursor
	for range 5 {
		require.Equal(t, 2, c.Await(&l, Root{}, ids))
	}
	require.Equal(t, 1, looked)
	require.NoError(t, c.Publish(a, Root{}, ids, 4))
	looked = 0
	require.Equal(t, 6, c.Await(&l, Root{}, ids))
	require.Equal(t, 2, looked, "the second block and the third")
	require.NoError(t, c.Publish(a, Root{}, ids, 6))
	require.Zero(t, c.Await(&l, Root{}, ids), "nobody has claimed the fourth")
	require.NoError(t, c.Release(a))
	require.Zero(t, c.Await(&l, Root{}, ids))

	b := &Table{}
	require.True(t, c.Grow(b, 16), "all that was cached goes")
	require.NoError(t, c.Release(b))
	require.Zero(t, c.Await(&l, Root{}, ids))
	c.Claim(c.Match(Root{}, run(5, 5)), Root{}, run(5, 5))
	require.Zero(t, c.Await(&l, Root{}, ids), "its nodes are others' now")
}

func TestPublishReusesItsClaims(t *testing.T) {
	// What is published as claimed is not searched again.
	c := New(Config{Blocks: 8, BlockSize: 2})
	a, looked := &Table{}, 0
	require.True(t, c.Grow(a, 6))
	c.Claim(a, Root{}, run(1, 4))
	hash := c.tree.hash
	c.tree.hash = func(parent uint64, ids []int32) uint64 { looked++; return hash(parent, ids) }
	require.NoError(t, c.Publish(a, Root{}, run(1, 4), 4))
	require.Zero(t, looked)
	require.NoError(t, c.Publish(a, Root{}, run(1, 6), 6))
	require.Equal(t, 1, looked, "the third block was not claimed")
	check(t, c, []*Table{a})
}

func TestClaimOfForgottenBlockPublishesAgain(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 2})
	a, wrong := &Table{}, &Table{}
	require.True(t, c.Grow(a, 4))
	c.Claim(a, Root{}, run(1, 4))
	require.True(t, c.Grow(wrong, 2))
	require.NoError(t, c.Publish(wrong, Root{}, run(1, 2), 2))
	c.Forget(wrong)
	require.NoError(t, c.Publish(a, Root{}, run(1, 4), 4))
	found := c.Match(Root{}, run(1, 5))
	require.Equal(t, a.Blocks, found.Blocks)
	for _, x := range []*Table{a, wrong, found} {
		require.NoError(t, c.Release(x))
	}
}

// computing reports whether a table claims a block that a sequence of ids could use.
func computing(c *Cache, r Root, ids []int32) bool { return c.Await(&Cursor{}, r, ids) > 0 }
