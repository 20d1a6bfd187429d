package batch

import (
	"maps"
	"slices"
	"sync"
)

// prefixMemory is how many changes of cached prefixes are stored for slow readers.
const prefixMemory = 8192

// prefixes publishes which named prefixes are in the cache: all of them, and the newest changes in
// order. The loop writes it. Any number of readers read it, each at its own speed, and the only
// state of a reader is a version number.
type prefixes struct {
	mu struct {
		sync.Mutex
		cached  map[uint64]prefixPlace
		changes []prefixChange // the newest, at most prefixMemory
		version uint64         // changes so far; changes[i] is number version-len(changes)+i+1
	}
}

func newPrefixes() *prefixes {
	p := &prefixes{}
	p.mu.cached = map[uint64]prefixPlace{}
	return p
}

// prefixPlace is where a prefix is cached. The zero value is nowhere.
type prefixPlace int8

const (
	prefixOnDevice prefixPlace = iota + 1
	prefixOnHost               // at least a part of it is in the host tier alone
)

type prefixChange struct {
	key           uint64
	before, after prefixPlace
}

// Prefixes returns the keys (Request.Keys) that were added to the prefix cache and removed from it
// since a call that returned this version. A key is in at most one of the lists; both are sorted.
// hosted has those of added that need copies from host memory. A key that moved between the device
// and host memory is in added again. A reader starts with since = 0 and an empty set. If reset is
// true, the reader must discard its set, because more than prefixMemory changes came since or its
// version belongs to another loop; added then has all cached keys. Any number of readers may
// call it, from any goroutine.
func (l *Loop) Prefixes(since uint64) (version uint64, reset bool, added, removed, hosted []uint64) {
	return l.prefixes.since(since)
}

func (p *prefixes) since(since uint64) (version uint64, reset bool, added, removed, hosted []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	version = p.mu.version
	if since == version {
		return version, false, nil, nil, nil
	}
	net := map[uint64]prefixChange{}
	if reset = since > version || version-since > uint64(len(p.mu.changes)); reset {
		for key, at := range p.mu.cached {
			net[key] = prefixChange{after: at}
		}
	} else {
		for _, c := range p.mu.changes[uint64(len(p.mu.changes))-(version-since):] {
			if first, twice := net[c.key]; twice {
				c.before = first.before
			}
			net[c.key] = c
		}
	}
	for _, key := range slices.Sorted(maps.Keys(net)) {
		switch c := net[key]; {
		case c.before == c.after: // the changes cancel out
		case c.after == 0:
			removed = append(removed, key)
		default:
			if added = append(added, key); c.after == prefixOnHost {
				hosted = append(hosted, key)
			}
		}
	}
	return version, reset, added, removed, hosted
}

// record stores keys that were added, moved or removed. onHost says where those of added are.
func (p *prefixes) record(added, removed []uint64, onHost func(uint64) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range added {
		at := placeOf(key, onHost)
		p.mu.changes = append(p.mu.changes, prefixChange{key, p.mu.cached[key], at})
		p.mu.cached[key] = at
	}
	for _, key := range removed {
		p.mu.changes = append(p.mu.changes, prefixChange{key, p.mu.cached[key], 0})
		delete(p.mu.cached, key)
	}
	p.mu.version += uint64(len(added) + len(removed))
	if over := len(p.mu.changes) - prefixMemory; over > 0 {
		p.mu.changes = slices.Delete(p.mu.changes, 0, over)
	}
}

func placeOf(key uint64, onHost func(uint64) bool) prefixPlace {
	if onHost(key) {
		return prefixOnHost
	}
	return prefixOnDevice
}

// replace sets the cached keys. Every reader gets a reset.
func (p *prefixes) replace(all []uint64, onHost func(uint64) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.mu.cached)
	for _, key := range all {
		p.mu.cached[key] = placeOf(key, onHost)
	}
	p.mu.version++
	p.mu.changes = p.mu.changes[:0]
}

// publishPrefixChanges passes the cache's changes on to the readers.
func (l *Loop) publishPrefixChanges() {
	switch added, removed, reset := l.cache.Changes(); {
	case reset:
		l.prefixes.replace(l.cache.All(), l.cache.OnHost)
	case len(added)+len(removed) > 0:
		l.prefixes.record(added, removed, l.cache.OnHost)
	}
}
