package tokenizer

// trie finds the longest of a set of strings at a position.
type trie struct {
	first [256]bool // bytes that begin a string
	edges map[uint64]int32
	ids   []int32 // of the string that ends in a node, None if none does
}

func newTrie() *trie {
	return &trie{edges: map[uint64]int32{}, ids: []int32{None}}
}

func (t *trie) add(s string, id int32) {
	t.first[s[0]] = true
	node := int32(0)
	for i := range len(s) {
		key := uint64(node)<<8 | uint64(s[i])
		child, ok := t.edges[key]
		if !ok {
			child = int32(len(t.ids))
			t.ids = append(t.ids, None)
			t.edges[key] = child
		}
		node = child
	}
	t.ids[node] = id
}

// find returns the first match at or after from, and of those that begin there the longest; id is None if there is none.
func (t *trie) find(s string, from int) (start, end int, id int32) {
	for ; from < len(s); from++ {
		if !t.first[s[from]] {
			continue
		}
		node, best, at := int32(0), None, 0
		for i := from; i < len(s); i++ {
			child, ok := t.edges[uint64(node)<<8|uint64(s[i])]
			if !ok {
				break
			}
			if node = child; t.ids[node] != None {
				best, at = t.ids[node], i+1
			}
		}
		if best != None {
			return from, at, best
		}
	}
	return len(s), len(s), None
}
