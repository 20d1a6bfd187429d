package batch

import (
	"maps"
	"slices"
	"sync"
)

// prefixMemory is how many changes of cached prefixes are kept for readers that come late.
const prefixMemory = 8192

// prefixes is what readers are told of the named prefixes in the cache: all of them, and the last changes in their order. The
// loop writes it, any number of readers read it, each at its own pace and keeping nothing but a number.
type prefixes struct {
	mu      sync.Mutex
	cached  map[uint64]struct{}
	changes []prefixChange // the last of them, at most prefixMemory
	at      uint64         // changes so far; changes[i] is number at-len(changes)+i+1
}

type prefixChange struct {
	key  uint64
	came bool
}

// Prefixes says which of the requests' keys (Request.Keys) came to the prefix cache and went from it since a call that answered
// with at = since; each key is in one of the lists at most, both in order of their numbers. A reader begins with since = 0 and
// knowing nothing. reset: what it knows is void, because it was away for too long or asks with a number that this loop never
// gave; added is then all that is cached. It may be called from any goroutine, by any number of readers.
func (l *Loop) Prefixes(since uint64) (at uint64, reset bool, added, removed []uint64) {
	return l.prefixes.since(since)
}

func (p *prefixes) since(since uint64) (at uint64, reset bool, added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since == p.at {
		return p.at, false, nil, nil
	}
	if since > p.at || p.at-since > uint64(len(p.changes)) {
		return p.at, true, slices.Sorted(maps.Keys(p.cached)), nil
	}
	net := map[uint64]bool{} // a second change of a key makes it what the reader knows
	for _, c := range p.changes[uint64(len(p.changes))-(p.at-since):] {
		if came, twice := net[c.key]; twice && came != c.came {
			delete(net, c.key)
			continue
		}
		net[c.key] = c.came
	}
	for _, key := range slices.Sorted(maps.Keys(net)) {
		if net[key] {
			added = append(added, key)
		} else {
			removed = append(removed, key)
		}
	}
	return p.at, false, added, removed
}

// change notes keys that came and went.
func (p *prefixes) change(added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range added {
		p.cached[key] = struct{}{}
		p.changes = append(p.changes, prefixChange{key, true})
	}
	for _, key := range removed {
		delete(p.cached, key)
		p.changes = append(p.changes, prefixChange{key, false})
	}
	p.at += uint64(len(added) + len(removed))
	if over := len(p.changes) - prefixMemory; over > 0 {
		p.changes = slices.Delete(p.changes, 0, over)
	}
}

// replace makes all what is cached; every reader starts anew.
func (p *prefixes) replace(all []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.cached)
	for _, key := range all {
		p.cached[key] = struct{}{}
	}
	p.at++
	p.changes = p.changes[:0]
}

// announce tells readers what came to the cache and went from it.
func (l *Loop) announce() {
	switch added, removed, reset := l.cache.Changes(); {
	case reset:
		l.prefixes.replace(l.cache.All())
	case len(added)+len(removed) > 0:
		l.prefixes.change(added, removed)
	}
}
