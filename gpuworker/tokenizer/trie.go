package tokenizer

// trie finds the longest of a set of strings at a position.
type trie struct {
	first [256]bool // bytes that begin a string
	edges map[uint64]int32
	ids   []int32 // of the string that ends at a node; None if none does
	free  []bool  // by node: its string is found anywhere, even outside the spans
}

func newTrie() *trie {
	return &trie{edges: map[uint64]int32{}, ids: []int32{None}, free: []bool{false}}
}

func (t *trie) add(s string, id int32, free bool) {
	t.first[s[0]] = true
	node := int32(0)
	for i := range len(s) {
		key := uint64(node)<<8 | uint64(s[i])
		child, ok := t.edges[key]
		if !ok {
			child = int32(len(t.ids))
			t.ids, t.free = append(t.ids, None), append(t.free, false)
			t.edges[key] = child
		}
		node = child
	}
	t.ids[node], t.free[node] = id, free
}

// find returns the first match at or after from, and the longest of those that start there; id is
// None if there is none. A string that is not free must be inside one of the spans. A free one that
// starts outside the spans does not take a byte of such a string, so that text from outside cannot
// break a special token of the template.
func (t *trie) find(s string, from int, within *spans) (start, end int, id int32) {
	for ; from < len(s); from++ {
		if !t.first[s[from]] {
			continue
		}
		node, best, pos := int32(0), None, 0
		reach := within.reach(from)
		for i := from; i < len(s); i++ {
			child, ok := t.edges[uint64(node)<<8|uint64(s[i])]
			if !ok {
				break
			}
			if node = child; t.ids[node] == None || !t.free[node] && i >= reach {
				continue
			}
			if reach == 0 && t.breaks(s, i+1, *within) {
				break
			}
			best, pos = t.ids[node], i+1
		}
		if best != None {
			return from, pos, best
		}
	}
	return len(s), len(s), None
}

// breaks reports whether a match up to a byte takes a part of a string that is not free and is in
// the next span.
func (t *trie) breaks(s string, to int, next spans) bool {
	if len(next) == 0 {
		return false
	}
	for from := next[0][0]; from < to; from++ {
		node := int32(0)
		for i := from; i < next[0][1]; i++ {
			child, ok := t.edges[uint64(node)<<8|uint64(s[i])]
			if !ok {
				break
			}
			if node = child; t.ids[node] != None && !t.free[node] {
				return true
			}
		}
	}
	return false
}

// spans are ranges of bytes of a text, ascending and disjoint, that are passed from left to right.
type spans [][2]int

// reach is the end of the span that contains a byte, or 0. Later calls must be for later bytes.
func (s *spans) reach(pos int) int {
	for len(*s) > 0 && (*s)[0][1] <= pos {
		*s = (*s)[1:]
	}
	if len(*s) == 0 || pos < (*s)[0][0] {
		return 0
	}
	return (*s)[0][1]
}
