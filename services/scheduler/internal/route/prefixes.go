package route

import (
	"sync"
	"sync/atomic"
)

const (
	// MaxPrefixes bounds the keys of one model on one worker: several times as many as the cache of
	// the largest device holds. Keys beyond it count as not cached.
	MaxPrefixes = 1 << 18
	// maxExpected bounds the keys that a worker is expected to report: those of its last requests.
	maxExpected = 1 << 11
)

// Prefixes are the keys of a model's cached prefixes on one worker: those that the worker has
// reported, and those of requests that it was just given, which it will have. The latter make a
// burst of equal prompts hit one worker before that has reported anything.
//
// Prefixes change while a snapshot points to them, because they are only a hint. They are safe
// for concurrent use. The zero value is empty and in no index, and nil stays empty.
type Prefixes struct {
	index  *Index
	number int // as a member of index; -1: none
	onDrop func()

	hostedKeys atomic.Int64 // len(mu.hosted)

	mu struct {
		sync.RWMutex
		reported map[uint64]struct{}
		hosted   map[uint64]struct{} // of reported, those in host memory
		expected map[uint64]struct{} // disjoint from reported
		order    []uint64            // a ring of expected keys, by age; it may contain removed ones
		next     int                 // the oldest in order
		dropped  bool
	}
}

// newPrefixes returns an empty set. It calls onDrop when it is dropped.
func newPrefixes(x *Index, onDrop func()) *Prefixes {
	return &Prefixes{index: x, number: x.join(), onDrop: onDrop}
}

// Change removes keys and then adds keys, as the worker reports. hosted are those of added that it
// must copy from host memory; added ones that it had there are on the device now.
func (p *Prefixes) Change(added, removed []uint64, hosted ...uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return
	}
	defer func() { p.hostedKeys.Store(int64(len(p.mu.hosted))) }()
	defer p.hostLocked(hosted)
	for _, keys := range [][]uint64{removed, added} {
		for _, key := range keys {
			delete(p.mu.hosted, key)
		}
	}
	for _, key := range removed {
		if _, found := p.mu.reported[key]; found {
			delete(p.mu.reported, key)
			p.removeFromIndex(key)
		}
		p.unexpectLocked(key)
	}
	if p.mu.reported == nil {
		p.mu.reported = make(map[uint64]struct{}, len(added))
	}
	for _, key := range added {
		if _, found := p.mu.reported[key]; found {
			continue
		}
		if len(p.mu.reported) >= MaxPrefixes {
			return
		}
		if _, found := p.mu.expected[key]; found {
			delete(p.mu.expected, key) // it stays in the index
		} else if !p.addToIndex(key) {
			continue
		}
		p.mu.reported[key] = struct{}{}
	}
}

// hostLocked records that reported keys are in host memory.
func (p *Prefixes) hostLocked(keys []uint64) {
	for _, key := range keys {
		if _, found := p.mu.reported[key]; !found {
			continue
		}
		if p.mu.hosted == nil {
			p.mu.hosted = map[uint64]struct{}{}
		}
		p.mu.hosted[key] = struct{}{}
	}
}

// Hosted returns how many of the first `cached` tokens of a request the worker must copy from host
// memory. Its device evicts the ends of prefixes first, so these are the last ones. keys are in
// order, the shortest first.
func (p *Prefixes) Hosted(keys []Key, cached int64) int64 {
	if p == nil || p.hostedKeys.Load() == 0 {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	end := int64(0)
	for i := len(keys) - 1; i >= 0; i-- {
		k := keys[i]
		if k.Tokens > cached {
			continue
		}
		if _, hosted := p.mu.hosted[k.Key]; hosted {
			end = max(end, k.Tokens)
		} else if _, found := p.mu.reported[k.Key]; found {
			return max(end-k.Tokens, 0)
		}
	}
	return end
}

// Expect adds keys that the worker will have, because it was given a request with that prompt.
// Newer requests displace the oldest.
func (p *Prefixes) Expect(keys []Key) {
	if p == nil || len(keys) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped || p.index == nil {
		return
	}
	if p.mu.expected == nil {
		p.mu.expected = map[uint64]struct{}{}
	}
	for _, k := range keys {
		if _, found := p.mu.reported[k.Key]; found {
			continue
		}
		if _, found := p.mu.expected[k.Key]; found || !p.addToIndex(k.Key) {
			continue
		}
		p.mu.expected[k.Key] = struct{}{}
		if len(p.mu.order) < maxExpected {
			p.mu.order = append(p.mu.order, k.Key)
			continue
		}
		p.unexpectLocked(p.mu.order[p.mu.next])
		p.mu.order[p.mu.next] = k.Key
		p.mu.next = (p.mu.next + 1) % maxExpected
	}
}

// Unexpect reverses an Expect, because the worker has computed nothing of the request.
func (p *Prefixes) Unexpect(keys []Key) {
	if p == nil || len(keys) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		p.unexpectLocked(k.Key)
	}
}

// unexpectLocked removes an expected key.
func (p *Prefixes) unexpectLocked(key uint64) {
	if _, found := p.mu.expected[key]; found {
		delete(p.mu.expected, key)
		p.removeFromIndex(key)
	}
}

// Drop removes the set from its index, because the worker is not followed any more, or reports all
// its keys again.
func (p *Prefixes) Drop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.dropped {
		return
	}
	p.mu.dropped = true
	for key := range p.mu.reported {
		p.removeFromIndex(key)
	}
	for key := range p.mu.expected {
		p.removeFromIndex(key)
	}
	p.mu.reported, p.mu.hosted, p.mu.expected, p.mu.order = nil, nil, nil, nil
	p.hostedKeys.Store(0)
	if p.index != nil && p.number >= 0 {
		p.index.leave(p.number)
	}
	if p.onDrop != nil {
		p.onDrop()
	}
}

// addToIndex adds a key to the index. It returns false if the index is full.
func (p *Prefixes) addToIndex(key uint64) bool {
	return p.index == nil || p.number >= 0 && p.index.add(key, uint16(p.number))
}

// removeFromIndex removes a key from the index.
func (p *Prefixes) removeFromIndex(key uint64) {
	if p.index != nil && p.number >= 0 {
		p.index.remove(key, uint16(p.number))
	}
}

// member returns the index and the set's number in it; nil: it is in none.
func (p *Prefixes) member() (x *Index, number int) {
	if p == nil || p.index == nil || p.number < 0 {
		return nil, 0
	}
	return p.index, p.number
}

// Longest returns the number, from 1, of the longest key that the worker has reported; 0: none. The
// keys of a request must be in order, the shortest prefix first.
func (p *Prefixes) Longest(keys []uint64) int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := len(keys); i > 0; i-- {
		if _, cached := p.mu.reported[keys[i-1]]; cached {
			return i
		}
	}
	return 0
}

// Len returns how many keys the worker has reported.
func (p *Prefixes) Len() int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.mu.reported)
}
