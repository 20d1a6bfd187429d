package kvcache

import (
	"maps"
	"slices"
)

// Key names the first Tokens tokens of a sequence to those who send requests to where they are cached.
type Key struct {
	Key    uint64
	Tokens int
}

// maxChanges is how many changes of keys wait to be fetched; beyond it the reader starts anew from all of them.
const maxChanges = 8192

// keyBook counts at how many nodes each key is, and what of that others have not heard.
type keyBook struct {
	nodes map[uint64]int
	// news has the keys that came (true) or went (false) since the last call of Changes, unless they are as they were.
	news  map[uint64]bool
	limit int  // len(news) <= limit
	reset bool // more than limit piled up; news is empty
}

func newKeyBook() keyBook {
	return keyBook{nodes: map[uint64]int{}, news: map[uint64]bool{}, limit: maxChanges}
}

// Name gives the sequence of t its keys, shortest first. Each is told as cached when the block that holds its last token is
// published, or now if it is, and as gone when that block is evicted
// or forgotten. Keys of no tokens name nothing and are left out.
func (c *Cache) Name(t *Table, keys []Key) {
	t.keys = nil
	for _, k := range keys {
		switch i := (k.Tokens - 1) / c.blockSize; {
		case k.Tokens < 1 || t.released:
		case i < t.Shared:
			c.keys.attach(&c.tree.nodes[c.nodeOf[t.Blocks[i]]], k.Key, c.maxKeys())
		default:
			t.keys = append(t.keys, k)
		}
	}
	slices.SortStableFunc(t.keys, func(a, b Key) int { return a.Tokens - b.Tokens })
}

// Changes returns the keys that came and that went since the last call, in order of their numbers. With reset there were too
// many to keep: what was told before is void, and All has what is.
func (c *Cache) Changes() (added, removed []uint64, reset bool) {
	reset = c.keys.reset
	for _, key := range slices.Sorted(maps.Keys(c.keys.news)) {
		if c.keys.news[key] {
			added = append(added, key)
		} else {
			removed = append(removed, key)
		}
	}
	clear(c.keys.news)
	c.keys.reset = false
	return added, removed, reset
}

// All returns the keys of what is cached, in order of their numbers.
func (c *Cache) All() []uint64 { return slices.Sorted(maps.Keys(c.keys.nodes)) }

// maxKeys is how many keys a node takes; the rest is forgotten. One prefix has several only where keys are closer together than
// blocks are long, or where different requests come to the same tokens.
func (c *Cache) maxKeys() int { return 16 + c.blockSize }

// attach tells the keys of t whose last tokens are in block i, which node n has.
func (c *Cache) attach(t *Table, i int, n int32) {
	for len(t.keys) > 0 && t.keys[0].Tokens <= (i+1)*c.blockSize {
		c.keys.attach(&c.tree.nodes[n], t.keys[0].Key, c.maxKeys())
		t.keys = t.keys[1:]
	}
}

// attach adds a key to n, unless n is hidden or has the most keys that a node may have.
func (b *keyBook) attach(n *node, key uint64, most int) {
	if n.lost || len(n.keys) >= most || slices.Contains(n.keys, key) {
		return
	}
	n.keys = append(n.keys, key)
	b.nodes[key]++
	if b.nodes[key] == 1 {
		b.changed(key, true)
	}
}

// detachAll takes every key off n, whose block goes.
func (b *keyBook) detachAll(n *node) {
	for _, key := range n.keys {
		b.nodes[key]--
		if b.nodes[key] == 0 {
			delete(b.nodes, key)
			b.changed(key, false)
		}
	}
	n.keys = n.keys[:0]
}

// changed notes that a key came or went. A second change makes it what the reader knows.
func (b *keyBook) changed(key uint64, came bool) {
	if b.reset {
		return
	}
	if _, twice := b.news[key]; twice {
		delete(b.news, key)
		return
	}
	if len(b.news) == b.limit {
		clear(b.news)
		b.reset = true
		return
	}
	b.news[key] = came
}
