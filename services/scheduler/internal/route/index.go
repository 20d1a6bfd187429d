package route

import (
	"sync"
	"sync/atomic"
)

// MaxHeld bounds the prefixes that all indexes of a process keep, each counted once for each worker that has it. At 60 bytes each,
// for the index and the worker's own set, that is 250 MB, and 14 000 for each of 300 workers: the keys of 900 000 tokens of text.
// One that is told beyond it is left out, as if its worker had not cached it.
const MaxHeld = 1 << 22

const (
	// maxSlots bounds the workers of an index.
	maxSlots = 1 << 16
	// shardCount divides an index: who changes one part holds up nobody who reads another. A power of two.
	shardCount = 64
	// grain divides a request's longest cached prefix: workers are told apart by what they have of it to about such a part.
	grain = 16
)

// Index says which workers have a prefix of one model and digest. Safe for concurrent use.
type Index struct {
	held   *atomic.Int64 // shared by all indexes of a process
	shards [shardCount]shard

	mu    sync.Mutex
	slots []bool // guarded by mu; those that are taken
}

// shard is a part of an index. What a key has is a worker's slot, or, from maxSlots on, the place of a list of slots.
type shard struct {
	mu    sync.RWMutex
	keys  map[uint64]uint32 // guarded by mu
	lists [][]uint16        // guarded by mu
	free  []uint32          // guarded by mu; places of lists that are not used
}

// take gives a slot; -1: none is left.
func (x *Index) take() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, taken := range x.slots {
		if !taken {
			x.slots[i] = true
			return i
		}
	}
	if len(x.slots) == maxSlots {
		return -1
	}
	x.slots = append(x.slots, true)
	return len(x.slots) - 1
}

// give takes a slot back; none of its keys may be left.
func (x *Index) give(slot int) {
	x.mu.Lock()
	x.slots[slot] = false
	x.mu.Unlock()
}

// shard is where a key is.
func (x *Index) shard(key uint64) *shard { return &x.shards[key%shardCount] }

// add says that a slot has a key, which it had not; false: the bound is reached.
func (x *Index) add(key uint64, slot uint16) bool {
	if x.held.Add(1) > MaxHeld {
		x.held.Add(-1)
		return false
	}
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	value, there := s.keys[key]
	switch {
	case !there:
		if s.keys == nil {
			s.keys = map[uint64]uint32{}
		}
		s.keys[key] = uint32(slot)
	case value < maxSlots:
		s.keys[key] = maxSlots + s.list(uint16(value), slot)
	default:
		list := &s.lists[value-maxSlots]
		*list = append(*list, slot)
	}
	return true
}

// list makes a list of two slots and returns its place.
func (s *shard) list(a, b uint16) uint32 {
	if n := len(s.free); n > 0 {
		at := s.free[n-1]
		s.free = s.free[:n-1]
		s.lists[at] = append(s.lists[at][:0], a, b)
		return at
	}
	s.lists = append(s.lists, []uint16{a, b})
	return uint32(len(s.lists) - 1)
}

// remove says that a slot has a key no more, which it had.
func (x *Index) remove(key uint64, slot uint16) {
	x.held.Add(-1)
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	value := s.keys[key]
	if value < maxSlots {
		delete(s.keys, key)
		return
	}
	at := value - maxSlots
	list := s.lists[at]
	for i, other := range list {
		if other == slot {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	s.lists[at] = list
	if len(list) == 1 {
		s.keys[key] = uint32(list[0])
		s.free = append(s.free, at)
		if cap(list) > 8 {
			s.lists[at] = nil
		}
	}
}
