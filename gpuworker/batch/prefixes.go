package batch

import (
	"maps"
	"slices"
	"sync"
)

// prefixMemory is how many changes of cached prefixes are stored for readers that fall behind.
const prefixMemory = 8192

// prefixes publishes which named prefixes are in the cache: all of them, and the newest changes in
// order. The loop writes it. Any number of readers read it, each at its own speed, and the only
// state of a reader is a version number.
type prefixes struct {
	mu struct {
		sync.Mutex
		cached  map[uint64]struct{}
		changes []prefixChange // the newest, at most prefixMemory
		version uint64         // changes so far; changes[i] is number version-len(changes)+i+1
	}
}

func newPrefixes() *prefixes {
	p := &prefixes{}
	p.mu.cached = map[uint64]struct{}{}
	return p
}

type prefixChange struct {
	key  uint64
	came bool
}

// Prefixes returns the keys (Request.Keys) that were added to the prefix cache and removed from it
// since a call that returned this version. A key is in at most one of the lists; both are sorted. A
// reader starts with since = 0 and an empty set. If reset is true, the reader must discard its set,
// because it fell behind by more than prefixMemory changes or its version belongs to another loop;
// added then has all cached keys. Any number of readers may call it, from any goroutine.
func (l *Loop) Prefixes(since uint64) (version uint64, reset bool, added, removed []uint64) {
	return l.prefixes.since(since)
}

func (p *prefixes) since(since uint64) (version uint64, reset bool, added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if since == p.mu.version {
		return p.mu.version, false, nil, nil
	}
	if since > p.mu.version || p.mu.version-since > uint64(len(p.mu.changes)) {
		return p.mu.version, true, slices.Sorted(maps.Keys(p.mu.cached)), nil
	}
	net := map[uint64]bool{} // two opposite changes of a key cancel out
	for _, c := range p.mu.changes[uint64(len(p.mu.changes))-(p.mu.version-since):] {
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
	return p.mu.version, false, added, removed
}

// record stores keys that were added and removed.
func (p *prefixes) record(added, removed []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range added {
		p.mu.cached[key] = struct{}{}
		p.mu.changes = append(p.mu.changes, prefixChange{key, true})
	}
	for _, key := range removed {
		delete(p.mu.cached, key)
		p.mu.changes = append(p.mu.changes, prefixChange{key, false})
	}
	p.mu.version += uint64(len(added) + len(removed))
	if over := len(p.mu.changes) - prefixMemory; over > 0 {
		p.mu.changes = slices.Delete(p.mu.changes, 0, over)
	}
}

// replace sets the cached keys. Every reader gets a reset.
func (p *prefixes) replace(all []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.mu.cached)
	for _, key := range all {
		p.mu.cached[key] = struct{}{}
	}
	p.mu.version++
	p.mu.changes = p.mu.changes[:0]
}

// publishPrefixChanges passes the cache's changes on to the readers.
func (l *Loop) publishPrefixChanges() {
	switch added, removed, reset := l.cache.Changes(); {
	case reset:
		l.prefixes.replace(l.cache.All())
	case len(added)+len(removed) > 0:
		l.prefixes.record(added, removed)
	}
}
