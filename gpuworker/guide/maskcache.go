package guide

import (
	"container/list"
	"math/bits"
	"sync"
)

// maskKey names a state of a grammar.
type maskKey struct {
	arena uint64
	node  uint32
	usual bool // spelling
}

// maskCache remembers masks by state, the least recently used are dropped. End tokens are not in them.
type maskCache struct {
	limit int // bytes
	mu    struct {
		sync.Mutex
		known map[maskKey]*list.Element
		order list.List // of *cachedMask, most recently used first
		bytes int
	}
}

// cachedMask is a mask, as the shorter of ids and words.
type cachedMask struct {
	key   maskKey
	ids   []int32
	words []uint32
}

func (c *cachedMask) bytes() int { return 128 + 4*len(c.ids) + 4*len(c.words) }

// get copies a remembered mask into mask.
func (m *maskCache) get(k maskKey, mask []uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.mu.known[k]
	if e == nil {
		return false
	}
	m.mu.order.MoveToFront(e)
	c := e.Value.(*cachedMask)
	if c.words != nil {
		copy(mask, c.words)
		return true
	}
	clear(mask)
	for _, id := range c.ids {
		mask[id>>5] |= 1 << (id & 31)
	}
	return true
}

// put remembers a mask of n tokens.
func (m *maskCache) put(k maskKey, mask []uint32, n int) {
	c := &cachedMask{key: k}
	if n < len(mask) {
		c.ids = make([]int32, 0, n)
		for i, w := range mask {
			for ; w != 0; w &= w - 1 {
				c.ids = append(c.ids, int32(i*32+bits.TrailingZeros32(w)))
			}
		}
	} else {
		c.words = append([]uint32(nil), mask...)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.known == nil {
		m.mu.known = map[maskKey]*list.Element{}
	}
	m.mu.known[k] = m.mu.order.PushFront(c)
	m.mu.bytes += c.bytes()
	for m.mu.bytes > m.limit && m.mu.order.Len() > 1 {
		oldest := m.mu.order.Remove(m.mu.order.Back()).(*cachedMask)
		delete(m.mu.known, oldest.key)
		m.mu.bytes -= oldest.bytes()
	}
}
