package kvcache

import (
	"maps"
	"slices"
)

// Key names the first Tokens tokens of a sequence for routing by cached prefixes.
type Key struct {
	Key    uint64
	Tokens int
}

// maxChanges bounds the stored changes of keys. Beyond it the reader must restart from all keys.
const maxChanges = 8192

// keyBook counts the nodes of each key and stores the changes for Changes.
type keyBook struct {
	nodes map[uint64]int
	// news has the keys that were added (true) or removed (false) since the last call of Changes.
	// Opposite changes cancel out.
	news  map[uint64]bool
	limit int  // len(news) <= limit
	reset bool // more than limit changes came; news is empty
}

func newKeyBook() keyBook {
	return keyBook{nodes: map[uint64]int{}, news: map[uint64]bool{}, limit: maxChanges}
}

// Name sets the keys of t's sequence. A key counts as cached when the block of its last token is
// published, which may be now, and as gone when that block is evicted or forgotten. Keys of no
// tokens are ignored.
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

// Changes returns the keys that were added and removed since the last call, sorted. reset means
// that too many changes came: the reader must discard its keys and read All.
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

// All returns the keys of everything cached, sorted.
func (c *Cache) All() []uint64 { return slices.Sorted(maps.Keys(c.keys.nodes)) }

// maxKeys bounds the keys of a node. A prefix has several only if keys are closer together than
// blocks are long, or if different requests contain the same tokens.
func (c *Cache) maxKeys() int { return 16 + c.blockSize }

// attach moves the keys of t whose last tokens are in block i to node n.
func (c *Cache) attach(t *Table, i int, n int32) {
	for len(t.keys) > 0 && t.keys[0].Tokens <= (i+1)*c.blockSize {
		c.keys.attach(&c.tree.nodes[n], t.keys[0].Key, c.maxKeys())
		t.keys = t.keys[1:]
	}
}

// attach adds a key to n, unless n is lost or has most keys.
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

// detachAll removes every key from n, whose block is evicted.
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

// changed stores that a key was added or removed. A second change cancels the first.
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
