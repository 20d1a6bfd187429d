package route

import "sync"

const (
	// MaxPrefixes is how many keys of one model on one worker are kept: several times what the cache of the largest device has. A
	// key that is told beyond it is left out: its worker then counts as one that has not cached it.
	MaxPrefixes = 1 << 18
	// maxExpected bounds the keys that a worker is expected to tell of: those of the last requests that it was given.
	maxExpected = 1 << 11
)

// Prefixes are the keys of a model's cached prefixes on one worker: those that the worker has told of, and those of requests that
// it was just given, which it will have. They change while a snapshot that points to them stays: what is cached is a hint. Safe for
// concurrent use; the zero value is empty and in no index, and nil stays empty.
type Prefixes struct {
	index   *Index
	slot    int
	dropped func()

	mu       sync.RWMutex
	told     map[uint64]struct{} // guarded by mu
	expected map[uint64]struct{} // guarded by mu; none of told
	order    []uint64            // guarded by mu; of expected, a ring; others may be among them
	next     int                 // guarded by mu; in order
	over     bool                // guarded by mu; dropped
}

// newPrefixes makes an empty set; dropped is called when it is dropped.
func newPrefixes(x *Index, dropped func()) *Prefixes {
	return &Prefixes{index: x, slot: x.take(), dropped: dropped}
}

// Change takes keys out and then puts keys in, as the worker tells.
func (p *Prefixes) Change(added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	for _, key := range removed {
		if _, there := p.told[key]; there {
			delete(p.told, key)
			p.leave(key)
		}
		p.forget(key)
	}
	if p.told == nil {
		p.told = make(map[uint64]struct{}, len(added))
	}
	for _, key := range added {
		if _, there := p.told[key]; there {
			continue
		}
		if len(p.told) >= MaxPrefixes {
			return
		}
		if _, there := p.expected[key]; there {
			delete(p.expected, key) // it is in the index
		} else if !p.enter(key) {
			continue
		}
		p.told[key] = struct{}{}
	}
}

// Expect says that the worker will have keys: it was given a request that begins so. A newer request may push them out.
func (p *Prefixes) Expect(keys []Key) {
	if p == nil || len(keys) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.index == nil {
		return
	}
	if p.expected == nil {
		p.expected = map[uint64]struct{}{}
	}
	for _, k := range keys {
		if _, there := p.told[k.Key]; there {
			continue
		}
		if _, there := p.expected[k.Key]; there || !p.enter(k.Key) {
			continue
		}
		p.expected[k.Key] = struct{}{}
		if len(p.order) < maxExpected {
			p.order = append(p.order, k.Key)
			continue
		}
		p.forget(p.order[p.next])
		p.order[p.next] = k.Key
		p.next = (p.next + 1) % maxExpected
	}
}

// Unexpect takes an Expect back: the worker has computed nothing of the request.
func (p *Prefixes) Unexpect(keys []Key) {
	if p == nil || len(keys) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range keys {
		p.forget(k.Key)
	}
}

// forget takes a key out of those expected.
func (p *Prefixes) forget(key uint64) {
	if _, there := p.expected[key]; there {
		delete(p.expected, key)
		p.leave(key)
	}
}

// Drop takes the set out of its index: the worker is not followed any more, or tells everything anew.
func (p *Prefixes) Drop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	for key := range p.told {
		p.leave(key)
	}
	for key := range p.expected {
		p.leave(key)
	}
	p.told, p.expected, p.order = nil, nil, nil
	if p.index != nil && p.slot >= 0 {
		p.index.give(p.slot)
	}
	if p.dropped != nil {
		p.dropped()
	}
}

// enter puts a key into the index; false: there is no room.
func (p *Prefixes) enter(key uint64) bool {
	return p.index == nil || p.slot >= 0 && p.index.add(key, uint16(p.slot))
}

// leave takes a key out of the index.
func (p *Prefixes) leave(key uint64) {
	if p.index != nil && p.slot >= 0 {
		p.index.remove(key, uint16(p.slot))
	}
}

// place is where the set is in its index; nil: nowhere.
func (p *Prefixes) place() (x *Index, slot int) {
	if p == nil || p.index == nil || p.slot < 0 {
		return nil, 0
	}
	return p.index, p.slot
}

// Longest looks for the keys of a request's prefixes, given from the shortest to the longest, and returns the number of the
// longest that the worker has told of, from 1; 0: none is.
func (p *Prefixes) Longest(keys []uint64) int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := len(keys); i > 0; i-- {
		if _, cached := p.told[keys[i-1]]; cached {
			return i
		}
	}
	return 0
}

// Len is the number of keys that the worker has told of.
func (p *Prefixes) Len() int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.told)
}
