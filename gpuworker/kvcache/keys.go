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

// keyReach is how far from a saved state a key may end that stands for it, in tokens: keys are about
// this far apart, and their numbers of tokens are estimates.
const keyReach = 64

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
// published, which may be now, and as gone when that block is evicted or forgotten. With saved
// states it counts as cached while a state near its last token is findable. Keys of no tokens are
// ignored.
func (c *Cache) Name(t *Table, keys []Key) {
	t.keys = nil
	for _, k := range keys {
		switch i := (k.Tokens - 1) / c.blockSize; {
		case k.Tokens < 1 || t.released:
		case c.hasStates():
			t.keys = append(t.keys, k)
		case i < t.Shared:
			c.keys.attach(&c.tree.nodes[c.nodeOf[t.Blocks[i]]], k.Key, c.maxKeys())
		default:
			t.keys = append(t.keys, k)
		}
	}
	slices.SortStableFunc(t.keys, func(a, b Key) int { return a.Tokens - b.Tokens })
	if c.hasStates() {
		for i := range t.Shared {
			c.attach(t, i, c.nodeOf[t.Blocks[i]])
		}
	}
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
	if c.hasStates() {
		c.attachToState(t, (i+1)*c.blockSize, n)
		return
	}
	for len(t.keys) > 0 && t.keys[0].Tokens <= (i+1)*c.blockSize {
		c.keys.attach(&c.tree.nodes[n], t.keys[0].Key, c.maxKeys())
		t.keys = t.keys[1:]
	}
}

// attachToState adds the keys of t that stand for the state of node n, if it has one, after `at`
// tokens: those of prefixes that can start there and have at most keyReach tokens, or an eighth of
// theirs, left to compute; and the last one before it, which the next request with this beginning
// has too. The keys stay with t, because states come and go.
func (c *Cache) attachToState(t *Table, at int, n int32) {
	if c.tree.nodes[n].state == 0 {
		return
	}
	for i, k := range t.keys {
		left, last := k.Tokens-at, i+1 == len(t.keys) || t.keys[i+1].Tokens > at
		if left >= 0 && left <= max(keyReach, k.Tokens/8) || left < 0 && left > -keyReach && last {
			c.keys.attach(&c.tree.nodes[n], k.Key, c.maxKeys())
		}
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

// detachAll removes every key from n, whose block or state is gone.
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
