package route

import (
	"sync"
	"sync/atomic"
)

// MaxHeld bounds the prefixes in all indexes of a process, each counted once for each worker that
// has it. At 60 bytes each, for the index and the worker's own set, that is 250 MB, and 14 000
// prefixes for each of 300 workers: the keys of 900 000 tokens of text. Prefixes beyond the bound
// count as not cached.
const MaxHeld = 1 << 22

const (
	// maxMembers bounds the workers of an index.
	maxMembers = 1 << 16
	// shardCount divides an index, so that a change of one part blocks no reader of the others. It
	// is a power of two.
	shardCount = 64
	// grain is the resolution of a lookup: workers are distinguished by a sixteenth of the longest
	// prefix.
	grain = 16
)

// Index records which workers have a prefix, of one model and digest. A worker is a member: a small
// number that is reused. An Index is safe for concurrent use.
type Index struct {
	held   *atomic.Int64 // shared by all indexes of a process
	shards [shardCount]shard

	mu struct {
		sync.Mutex
		members []bool // whether the number is used
	}
}

// shard is a part of an index.
type shard struct {
	mu struct {
		sync.RWMutex
		// keys maps a key to its only member, or, from maxMembers on, to the number of a list plus
		// maxMembers. Most keys have one member, and need no list.
		keys  map[uint64]uint32
		lists [][]uint16
		free  []uint32 // numbers of unused lists
	}
}

// join returns the number of a new member; -1: the index is full.
func (x *Index) join() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, used := range x.mu.members {
		if !used {
			x.mu.members[i] = true
			return i
		}
	}
	if len(x.mu.members) == maxMembers {
		return -1
	}
	x.mu.members = append(x.mu.members, true)
	return len(x.mu.members) - 1
}

// leave frees the number of a member, which must have no keys.
func (x *Index) leave(member int) {
	x.mu.Lock()
	x.mu.members[member] = false
	x.mu.Unlock()
}

// shard returns the shard of a key.
func (x *Index) shard(key uint64) *shard { return &x.shards[key%shardCount] }

// add adds a key to a member that does not have it. It returns false if the bound is reached.
func (x *Index) add(key uint64, member uint16) bool {
	if x.held.Add(1) > MaxHeld {
		x.held.Add(-1)
		return false
	}
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	value, found := s.mu.keys[key]
	switch {
	case !found:
		if s.mu.keys == nil {
			s.mu.keys = map[uint64]uint32{}
		}
		s.mu.keys[key] = uint32(member)
	case value < maxMembers:
		s.mu.keys[key] = maxMembers + s.listLocked(uint16(value), member)
	default:
		list := &s.mu.lists[value-maxMembers]
		*list = append(*list, member)
	}
	return true
}

// listLocked makes a list of two members and returns its number.
func (s *shard) listLocked(a, b uint16) uint32 {
	if n := len(s.mu.free); n > 0 {
		number := s.mu.free[n-1]
		s.mu.free = s.mu.free[:n-1]
		s.mu.lists[number] = append(s.mu.lists[number][:0], a, b)
		return number
	}
	s.mu.lists = append(s.mu.lists, []uint16{a, b})
	return uint32(len(s.mu.lists) - 1)
}

// remove removes a key from a member that has it.
func (x *Index) remove(key uint64, member uint16) {
	x.held.Add(-1)
	s := x.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	value := s.mu.keys[key]
	if value < maxMembers {
		delete(s.mu.keys, key)
		return
	}
	number := value - maxMembers
	list := s.mu.lists[number]
	for i, other := range list {
		if other == member {
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			break
		}
	}
	s.mu.lists[number] = list
	if len(list) == 1 {
		s.mu.keys[key] = uint32(list[0])
		s.mu.free = append(s.mu.free, number)
		if cap(list) > 8 {
			s.mu.lists[number] = nil
		}
	}
}

// Indexes holds the indexes of all models, by name and digest, under one bound. It is safe for
// concurrent use. The zero value is empty.
type Indexes struct {
	held atomic.Int64

	mu struct {
		sync.Mutex
		byModel map[indexKey]*countedIndex
	}
}

type indexKey struct{ model, digest string }

// countedIndex is an index and the number of Prefixes that use it.
type countedIndex struct {
	index Index
	users int
}

// Prefixes returns an empty set of a worker's prefixes of a model, in the model's index. It must be
// dropped. Indexes may be nil; then the set is in no index.
func (i *Indexes) Prefixes(model, digest string) *Prefixes {
	if i == nil {
		return &Prefixes{}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	key := indexKey{model, digest}
	c := i.mu.byModel[key]
	if c == nil {
		c = &countedIndex{index: Index{held: &i.held}}
		if i.mu.byModel == nil {
			i.mu.byModel = map[indexKey]*countedIndex{}
		}
		i.mu.byModel[key] = c
	}
	c.users++
	return newPrefixes(&c.index, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(i.mu.byModel, key)
		}
	})
}

// Len returns how many prefixes are held, each counted once for each worker that has it.
//
// Invariant: Len() <= MaxHeld.
func (i *Indexes) Len() int64 { return i.held.Load() }
