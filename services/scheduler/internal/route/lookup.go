package route

// lookup finds the longest cached prefix of one request on each worker of a pool.
//
// Workers evict the ends of prefixes before their beginnings, so a worker that has a prefix has all
// shorter ones, and the workers that have a key are a subset of those that have a shorter one.
// Therefore the longest key of all is found by binary search, and if two keys have equally many
// workers, so have all keys between them. That takes about log2(keys) look-ups instead of one for
// each key and worker.
type lookup struct {
	mapping
	keys  []Key
	out   []int64 // by entry: tokens cached
	least int64   // difference in tokens below which workers are not distinguished
}

// run sets out, which must be all zero.
func (l *lookup) run() {
	last := l.longest()
	if last < 0 {
		return
	}
	l.least = l.keys[last].Tokens / grain
	l.between(0, l.count(0), last, l.mark(last))
}

// longest returns the number of the longest key that any worker has; -1: none.
func (l *lookup) longest() int {
	low, high := -1, len(l.keys)-1 // a worker has low, none has keys above high
	if high >= 0 && l.count(high) > 0 {
		return high
	}
	for high--; low < high; {
		middle := low + (high-low+1)/2
		if l.count(middle) > 0 {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// between marks the workers that have keys from low on but not high. ofLow and ofHigh workers have
// these keys, and those of high are marked.
func (l *lookup) between(low, ofLow, high, ofHigh int) {
	switch {
	case low >= high || ofLow == ofHigh:
	case high-low == 1 || l.keys[high].Tokens-l.keys[low].Tokens <= l.least:
		l.mark(low)
	default:
		middle := low + (high-low)/2
		ofMiddle := l.count(middle)
		l.between(middle, ofMiddle, high, ofHigh)
		l.between(low, ofLow, middle, ofMiddle)
	}
}

// count returns how many workers have a key.
func (l *lookup) count(key int) int {
	s := l.index.shard(l.keys[key].Key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, found := s.mu.keys[l.keys[key].Key]
	switch {
	case !found:
		return 0
	case value < maxMembers:
		return 1
	}
	return len(s.mu.lists[value-maxMembers])
}

// mark sets out for the workers that have a key, unless they have a longer one. It returns their
// number.
func (l *lookup) mark(key int) int {
	s := l.index.shard(l.keys[key].Key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, found := s.mu.keys[l.keys[key].Key]
	switch {
	case !found: // it was removed since it was counted
		return 0
	case value < maxMembers:
		l.set(uint16(value), l.keys[key].Tokens)
		return 1
	}
	list := s.mu.lists[value-maxMembers]
	for _, member := range list {
		l.set(member, l.keys[key].Tokens)
	}
	return len(list)
}

// set sets the cached tokens of a member, unless they are set.
func (l *lookup) set(member uint16, tokens int64) {
	if int(member) >= len(l.entries) {
		return // it joined after the snapshot was made
	}
	if e := l.entries[member]; e > 0 && l.out[e-1] == 0 {
		l.out[e-1] = tokens
	}
}
