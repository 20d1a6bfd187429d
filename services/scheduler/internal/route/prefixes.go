package route

import "sync"

// MaxPrefixes is how many keys of one model on one worker are kept, some 8 MB: several times what the cache of the largest device
// has. A key that is added beyond it is left out: its worker then counts as one that has not cached it.
const MaxPrefixes = 1 << 18

// Prefixes are the keys of a model's cached prefixes on one worker, as the worker tells them. They change while a snapshot that
// points to them stays: what is cached is a hint. Safe for concurrent use; the zero value is empty, and nil stays so.
type Prefixes struct {
	mu   sync.RWMutex
	keys map[uint64]struct{} // guarded by mu
}

// Change takes keys out and then puts keys in.
func (p *Prefixes) Change(added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range removed {
		delete(p.keys, key)
	}
	if p.keys == nil {
		p.keys = make(map[uint64]struct{}, len(added))
	}
	for _, key := range added {
		if len(p.keys) >= MaxPrefixes {
			return
		}
		p.keys[key] = struct{}{}
	}
}

// Longest looks for the keys of a request's prefixes, given from the shortest to the longest, and returns the number of the
// longest that is cached, from 1; 0: none is.
func (p *Prefixes) Longest(keys []uint64) int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	for i := len(keys); i > 0; i-- {
		if _, cached := p.keys[keys[i-1]]; cached {
			return i
		}
	}
	return 0
}

// Len is the number of keys.
func (p *Prefixes) Len() int {
	if p == nil {
		return 0
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.keys)
}
