package kvcache

import "testing"

// The cost of admission and release: a sequence of 8 192 tokens in 512 blocks, all but the last
// cached.
func BenchmarkMatchGrowPublishRelease(b *testing.B) {
	c := New(Config{Blocks: 4096, BlockSize: 16})
	ids := run(1, 8192)
	for b.Loop() {
		t := c.Match(Root{}, ids)
		if !c.Grow(t, len(ids)) || c.Publish(t, Root{}, ids, len(ids)) != nil || c.Release(t) != nil {
			b.Fatal("the cache is full")
		}
	}
}

// Every prompt is another one, so that all blocks are evicted in turn.
func BenchmarkComputeWhereNothingIsCached(b *testing.B) {
	c := New(Config{Blocks: 4096, BlockSize: 16})
	ids := run(1, 8192)
	for b.Loop() {
		ids[0]++
		t := c.Match(Root{}, ids)
		if !c.Grow(t, len(ids)) || c.Publish(t, Root{}, ids, len(ids)) != nil || c.Release(t) != nil {
			b.Fatal("the cache is full")
		}
	}
}

func BenchmarkGrowByOneToken(b *testing.B) {
	c := New(Config{Blocks: 4096, BlockSize: 16})
	t, n := &Table{}, 0
	for b.Loop() {
		n++
		if n > 4096*16 {
			b.StopTimer()
			if c.Release(t) != nil {
				b.Fatal("not released")
			}
			t, n = &Table{}, 1
			b.StartTimer()
		}
		if _, _, _, ok := c.Own(t, n-1); !ok || !c.Grow(t, n) {
			b.Fatal("the cache is full")
		}
	}
}

// The same for a sequence that claims its blocks first, as in the step loop.
func BenchmarkClaimAndComputeWhereNothingIsCached(b *testing.B) {
	c := New(Config{Blocks: 4096, BlockSize: 16})
	ids := run(1, 8192)
	for b.Loop() {
		ids[0]++
		t := c.Match(Root{}, ids)
		if !c.Grow(t, len(ids)) {
			b.Fatal("the cache is full")
		}
		c.Claim(t, Root{}, ids)
		if c.Publish(t, Root{}, ids, len(ids)) != nil || c.Release(t) != nil {
			b.Fatal("the blocks are not taken")
		}
	}
}
