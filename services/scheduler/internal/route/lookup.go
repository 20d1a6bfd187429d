package route

// lookup finds what the workers of a pool have of one request. Workers lose the ends of their prefixes before the beginnings: who
// has a prefix has the shorter ones too, and the workers that have it are among those of each shorter one. So the longest is found
// by halving, and where two prefixes have equally many workers those between them have the same.
type lookup struct {
	mapping
	keys  []Key
	out   []int64 // by entry: tokens cached
	least int64   // tokens below which nobody is told apart
}

// run sets out, which is all zero.
func (l *lookup) run() {
	last := l.longest()
	if last < 0 {
		return
	}
	l.least = l.keys[last].Tokens / grain
	l.between(0, l.count(0), last, l.mark(last))
}

// longest is the number of the longest key that anybody has; -1: none.
func (l *lookup) longest() int {
	low, high := -1, len(l.keys)-1 // somebody has low, nobody has what is behind high
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

// between marks who has keys from low on and not high, where as many workers have them; those of high are marked.
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

// count is how many workers have a key.
func (l *lookup) count(key int) int {
	s := l.index.shard(l.keys[key].Key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, there := s.keys[l.keys[key].Key]
	switch {
	case !there:
		return 0
	case value < maxSlots:
		return 1
	}
	return len(s.lists[value-maxSlots])
}

// mark notes who has a key and no longer one, and returns how many have it.
func (l *lookup) mark(key int) int {
	s := l.index.shard(l.keys[key].Key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, there := s.keys[l.keys[key].Key]
	switch {
	case !there: // it went meanwhile
		return 0
	case value < maxSlots:
		l.has(uint16(value), l.keys[key].Tokens)
		return 1
	}
	list := s.lists[value-maxSlots]
	for _, slot := range list {
		l.has(slot, l.keys[key].Tokens)
	}
	return len(list)
}

// has notes that the worker at a slot has so many tokens.
func (l *lookup) has(slot uint16, tokens int64) {
	if int(slot) >= len(l.slots) {
		return // it came after the snapshot
	}
	if e := l.slots[slot]; e > 0 && l.out[e-1] == 0 {
		l.out[e-1] = tokens
	}
}
