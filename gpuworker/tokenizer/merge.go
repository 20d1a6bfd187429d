package tokenizer

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

// pairTable maps a pair of neighbouring symbols to their merged symbol and the merge's rank; the
// lowest rank merges first. It is an open-addressing table, because one lookup per symbol is the
// cost of encoding.
type pairTable struct {
	slots []pairSlot
	shift uint
	seed  uint64 // random, so that a vocabulary cannot be built to collide
}

type pairSlot struct {
	key    uint64 // left<<32 | right, plus one; zero is a free slot
	rank   uint32
	merged int32
}

func newPairTable(entries int) *pairTable {
	n := bits.Len(uint(entries)*2 + 15)
	return &pairTable{slots: make([]pairSlot, 1<<n), shift: uint(64 - n), seed: rand.Uint64()}
}

func (t *pairTable) slot(key uint64) *pairSlot {
	h := key ^ t.seed
	h = (h ^ h>>32) * 0x9E3779B97F4A7C15
	h = (h ^ h>>29) * 0xBF58476D1CE4E5B9
	mask := uint64(len(t.slots) - 1)
	for i := h >> t.shift; ; i++ {
		s := &t.slots[i&mask]
		if s.key == key || s.key == 0 {
			return s
		}
	}
}

// add keeps the first entry of a pair. The caller must not add more entries than newPairTable was
// called with.
func (t *pairTable) add(left, right int32, rank uint32, merged int32) {
	key := uint64(uint32(left))<<32 | uint64(uint32(right)) + 1
	if s := t.slot(key); s.key == 0 {
		*s = pairSlot{key: key, rank: rank, merged: merged}
	}
}

const noRank = ^uint32(0)

// get returns noRank for a pair that does not merge, or that has a negative symbol.
func (t *pairTable) get(left, right int32) (rank uint32, merged int32) {
	if left < 0 || right < 0 {
		return noRank, None
	}
	key := uint64(uint32(left))<<32 | uint64(uint32(right)) + 1
	if s := t.slot(key); s.key != 0 {
		return s.rank, s.merged
	}
	return noRank, None
}

// merger applies merges to a sequence of symbols. It is scratch space for one goroutine.
type merger struct {
	pairs *pairTable
	syms  []int32
	ranks []uint32 // of the pair that starts at a symbol
	next  []int32
	prev  []int32
	heap  mergeHeap
}

// longRun is the number of symbols from which a heap is faster than scanning every pair.
const longRun = 40

// merge merges m.syms until no pair merges: always the lowest rank, and of equal ranks the leftmost
// pair.
func (m *merger) merge() {
	switch {
	case len(m.syms) < 2:
	case len(m.syms) < longRun:
		m.mergeShort()
	default:
		m.mergeLong()
	}
}

func (m *merger) mergeShort() {
	syms, ranks := m.syms, m.ranks[:0]
	for i := 0; i+1 < len(syms); i++ {
		r, _ := m.pairs.get(syms[i], syms[i+1])
		ranks = append(ranks, r)
	}
	m.ranks = ranks
	for {
		best, pos := noRank, -1
		for i, r := range ranks {
			if r < best {
				best, pos = r, i
			}
		}
		if pos < 0 {
			break
		}
		_, syms[pos] = m.pairs.get(syms[pos], syms[pos+1])
		syms = append(syms[:pos+1], syms[pos+2:]...)
		ranks = append(ranks[:pos], ranks[pos+1:]...)
		if pos > 0 {
			ranks[pos-1], _ = m.pairs.get(syms[pos-1], syms[pos])
		}
		if pos < len(ranks) {
			ranks[pos], _ = m.pairs.get(syms[pos], syms[pos+1])
		}
	}
	m.syms = syms
}

// gone marks a symbol that was merged into its left neighbour.
const gone int32 = -1 << 31

func (m *merger) mergeLong() {
	n := int32(len(m.syms))
	// Growing once keeps megabytes of text at 28 bytes per symbol. Growing by append would reach
	// more than twice that.
	m.next, m.prev = slices.Grow(m.next[:0], int(n)), slices.Grow(m.prev[:0], int(n))
	m.heap = slices.Grow(m.heap[:0], int(n))
	for i := range n {
		m.next, m.prev = append(m.next, i+1), append(m.prev, i-1)
	}
	for i := range n - 1 {
		if r, _ := m.pairs.get(m.syms[i], m.syms[i+1]); r != noRank {
			m.heap = append(m.heap, candidate{uint64(r)<<32 | uint64(i), m.syms[i], m.syms[i+1]})
		}
	}
	m.heap.init()
	for len(m.heap) > 0 {
		c := m.heap.pop()
		pos := int32(uint32(c.key))
		right := m.next[pos]
		if m.syms[pos] != c.left || right >= n || m.syms[right] != c.right {
			continue // one side has merged since
		}
		_, m.syms[pos] = m.pairs.get(c.left, c.right)
		m.syms[right] = gone
		after := m.next[right]
		m.next[pos] = after
		if after < n {
			m.prev[after] = pos
			m.push(pos, after)
		}
		if before := m.prev[pos]; before >= 0 {
			m.push(before, pos)
		}
	}
	kept := m.syms[:0]
	for i := int32(0); i < n; i = m.next[i] {
		kept = append(kept, m.syms[i])
	}
	m.syms = kept
}

func (m *merger) push(left, right int32) {
	if r, _ := m.pairs.get(m.syms[left], m.syms[right]); r != noRank {
		m.heap.push(candidate{uint64(r)<<32 | uint64(left), m.syms[left], m.syms[right]})
	}
}
