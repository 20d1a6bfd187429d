package tokenizer

// candidate is a merge that was possible when it was pushed.
type candidate struct {
	key         uint64 // rank<<32 | index of the left symbol: the order of merges
	left, right int32  // the symbols then
}

// mergeHeap is a binary min-heap by key, written out because container/heap costs an interface call
// for each comparison.
type mergeHeap []candidate

func (h mergeHeap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *mergeHeap) push(c candidate) {
	*h = append(*h, c)
	s, i := *h, len(*h)-1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].key <= c.key {
			break
		}
		s[i], i = s[up], up
	}
	s[i] = c
}

func (h *mergeHeap) pop() candidate {
	s := *h
	top, last := s[0], len(s)-1
	s[0] = s[last]
	*h = s[:last]
	if last > 1 {
		(*h).down(0)
	}
	return top
}

func (h mergeHeap) down(i int) {
	c := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if r := child + 1; r < len(h) && h[r].key < h[child].key {
			child = r
		}
		if c.key <= h[child].key {
			break
		}
		h[i], i = h[child], child
	}
	h[i] = c
}
