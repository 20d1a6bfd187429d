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

// place is where the content of a key, or of a node, is.
type place int8

const (
	nowhere  place = iota
	onHost         // at least a part of it is in the host tier alone
	onDevice       // all of it is on the device
)

// keyBook counts the nodes of each key and stores the changes for Changes.
type keyBook struct {
	nodes map[uint64]keyCount
	// news has the keys that changed since the last call of Changes, and where they were then.
	news  map[uint64]place
	limit int  // len(news) <= limit
	reset bool // more than limit changes came; news is empty
}

// keyCount is how many nodes of a key are where.
type keyCount struct{ onHost, onDevice int }

func (k keyCount) place() place {
	switch {
	case k.onDevice > 0:
		return onDevice
	case k.onHost > 0:
		return onHost
	}
	return nowhere
}

func (k *keyCount) add(at place, n int) {
	switch at {
	case onDevice:
		k.onDevice += n
	case onHost:
		k.onHost += n
	case nowhere:
	}
}

func newKeyBook() keyBook {
	return keyBook{nodes: map[uint64]keyCount{}, news: map[uint64]place{}, limit: maxChanges}
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
			c.attachKey(c.nodeOf[t.Blocks[i]], k.Key)
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

// Changes returns the keys that were added, or moved between the device and host memory, and those
// that were removed since the last call, sorted. reset means that too many changes came: the reader
// must discard its keys and read All. OnHost says where a key is. Content of the host tier that no
// sequence can start with is given up first.
func (c *Cache) Changes() (added, removed []uint64, reset bool) {
	c.dropUnreachable()
	reset = c.keys.reset
	for _, key := range slices.Sorted(maps.Keys(c.keys.news)) {
		if c.keys.nodes[key].place() != nowhere {
			added = append(added, key)
		} else {
			removed = append(removed, key)
		}
	}
	clear(c.keys.news)
	c.keys.reset = false
	return added, removed, reset
}

// All returns the keys of everything cached, on the device or in host memory, sorted.
func (c *Cache) All() []uint64 { return slices.Sorted(maps.Keys(c.keys.nodes)) }

// OnHost reports whether a sequence with a cached key needs copies from host memory.
func (c *Cache) OnHost(key uint64) bool { return c.keys.nodes[key].place() == onHost }

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
		c.attachKey(n, t.keys[0].Key)
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
			c.attachKey(n, k.Key)
		}
	}
}

// attachKey adds a key to node n, unless n is lost or has most keys.
func (c *Cache) attachKey(n int32, key uint64) {
	x := &c.tree.nodes[n]
	if x.lost || len(x.keys) >= c.maxKeys() || slices.Contains(x.keys, key) {
		return
	}
	c.rekey(n)
	x.keys = append(x.keys, key)
	c.keys.move(key, nowhere, x.place)
}

// rekey moves the keys of node n to where its content is now, and removes them if it is nowhere.
func (c *Cache) rekey(n int32) {
	x := &c.tree.nodes[n]
	before := x.place
	x.place = c.placeOf(x)
	if x.place == before {
		return
	}
	for _, key := range x.keys {
		c.keys.move(key, before, x.place)
	}
	if x.place == nowhere {
		x.keys = x.keys[:0]
	}
}

// placeOf is where a sequence finds the content of a node.
func (c *Cache) placeOf(x *node) place {
	of := func(device bool, entry int32) place {
		switch {
		case device:
			return onDevice
		case entry != none:
			return onHost
		}
		return nowhere
	}
	if x.lost {
		return nowhere
	}
	at := of(x.block != none, x.hosted[Block])
	if c.hasStates() {
		at = min(at, of(x.state != 0, x.hosted[State]))
	}
	return at
}

// move counts a node of a key at another place.
func (b *keyBook) move(key uint64, from, to place) {
	count := b.nodes[key]
	before := count.place()
	count.add(from, -1)
	count.add(to, 1)
	if b.nodes[key] = count; count == (keyCount{}) {
		delete(b.nodes, key)
	}
	if after := count.place(); after != before {
		b.changed(key, before, after)
	}
}

// changed stores that a key moved. A change back cancels the first.
func (b *keyBook) changed(key uint64, before, after place) {
	if b.reset {
		return
	}
	if at, known := b.news[key]; known {
		if at == after {
			delete(b.news, key)
		}
		return
	}
	if len(b.news) == b.limit {
		clear(b.news)
		b.reset = true
		return
	}
	b.news[key] = before
}
