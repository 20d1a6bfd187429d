package guide

import "slices"

// Inside a string nearly every token is allowed, and a walk of the whole trie would visit nearly every
// node. So a vocabulary has slices: the tokens of at most so many plain characters. If all texts of so many
// plain characters may follow a state, which plainReach finds from the byte classes, the tokens of the
// slice are allowed at once, and the walk visits the trie of the others.

// plainLengths are the lengths of slices, in characters.
var plainLengths = [...]int{4, 8, 16, 32}

// Where only some texts lead to such a state, as in the key of an object with declared names, the walk
// visits the trie of plain tokens first, and takes a subtree as a whole where it reaches such a state.

// slice is the tokens of at most some plain characters.
type slice struct {
	length int
	mask   []uint32
	count  int
	rest   trie // of the other tokens
}

func (s *slice) has(id int32) bool { return s.mask[id>>5]&(1<<(id&31)) != 0 }

// slicesOf returns the slices of tokens in the order of their bytes, the longest first.
func slicesOf(text [][]byte, order []int32, words int) []slice {
	lengths := make([]int, len(order)) // in plain characters; 0: not plain
	for i, id := range order {
		if n, ok := plainChars(text[id]); ok {
			lengths[i] = n
		}
	}
	var all []slice
	for _, most := range slices.Backward(plainLengths[:]) {
		s := slice{length: most, mask: make([]uint32, words)}
		var others []int32
		for i, id := range order {
			if lengths[i] == 0 || lengths[i] > most {
				others = append(others, id)
				continue
			}
			s.mask[id>>5] |= 1 << (id & 31)
			s.count++
		}
		s.rest = newTrie(text, others)
		all = append(all, s)
	}
	return all
}

// plainChars returns the number of characters of a text if all are plain: neither a control character, nor
// a quote, nor a backslash, and whole in UTF-8.
func plainChars(text []byte) (n int, ok bool) {
	for i := 0; i < len(text); n++ {
		size := plainSize(text[i])
		if size == 0 || i+size > len(text) {
			return 0, false
		}
		for j := 1; j < size; j++ {
			low, high := continuation(text[i], j)
			if text[i+j] < low || text[i+j] > high {
				return 0, false
			}
		}
		i += size
	}
	return n, true
}

// plainSize is the length of the characters that begin with a byte; 0 if none of them is plain.
func plainSize(c byte) int {
	switch {
	case c < 0x20 || c == '"' || c == '\\' || c == 0x7f:
		return 0
	case c < 0x7f:
		return 1
	case c >= 0xc2 && c <= 0xdf:
		return 2
	case c >= 0xe0 && c <= 0xef:
		return 3
	case c >= 0xf0 && c <= 0xf4:
		return 4
	}
	return 0
}

// continuation is the range of byte j of a character that begins with lead.
func continuation(lead byte, j int) (low, high byte) {
	if j > 1 {
		return 0x80, 0xbf
	}
	switch lead {
	case 0xe0:
		return 0xa0, 0xbf
	case 0xed:
		return 0x80, 0x9f
	case 0xf0:
		return 0x90, 0xbf
	case 0xf4:
		return 0x80, 0x8f
	}
	return 0x80, 0xbf
}

// plainKind is plain characters of one length whose bytes have the same ranges: one byte of each class
// that may stand at each position.
type plainKind [][]byte

// plainKinds returns the kinds of plain characters under byte classes. There are few, even if no two
// bytes are of one class, whereas the class sequences of characters may be as many as the characters.
func plainKinds(classOf *[256]uint8) []plainKind {
	type shape struct {
		size      int
		low, high byte // of the second byte
	}
	index := map[shape]int{}
	var all []plainKind
	for c := range 256 {
		of := shape{size: plainSize(byte(c))}
		if of.size == 0 {
			continue
		}
		if of.size > 1 {
			of.low, of.high = continuation(byte(c), 1)
		}
		i, known := index[of]
		if !known {
			i = len(all)
			index[of] = i
			kind := make(plainKind, of.size)
			for j := 1; j < of.size; j++ {
				low, high := continuation(byte(c), j)
				for d := int(low); d <= int(high); d++ {
					kind[j] = addClass(kind[j], byte(d), classOf)
				}
			}
			all = append(all, kind)
		}
		all[i][0] = addClass(all[i][0], byte(c), classOf)
	}
	return all
}

// addClass appends c unless a byte of its class is there.
func addClass(reps []byte, c byte, classOf *[256]uint8) []byte {
	if slices.ContainsFunc(reps, func(r byte) bool { return classOf[r] == classOf[c] }) {
		return reps
	}
	return append(reps, c)
}

// maxPlainStates bounds the states inside a plain character that plainNext follows. Where all characters
// lead to one state, there are hardly more of them than positions in a character.
const maxPlainStates = 8

// maxPlainWork bounds the terms that findPlainNext visits. A state with more alternatives than that
// is not that of a string without constraints.
const maxPlainWork = 1 << 12

// plainNext returns the state to which every plain character leads from n, or none if they lead to
// several states, or lead there through many. It remembers the result. work is what finding it costs,
// remembered or not.
func (r *arena) plainNext(n *node) (next *node, work int) {
	if n.plain == nil {
		n.plain, n.plainFor = r.findPlainNext(n)
	}
	return n.plain, int(n.plainFor)
}

func (r *arena) findPlainNext(n *node) (next *node, work uint32) {
	var all *node
	for _, kind := range r.plain {
		level := []*node{n}
		for _, reps := range kind {
			var next []*node
			for _, at := range level {
				for _, c := range reps {
					if work += r.costOf(at); work > maxPlainWork {
						return r.none, work
					}
					to := r.step(at, c)
					if to.kind == kindNone {
						return r.none, work
					}
					if !slices.Contains(next, to) {
						next = append(next, to)
					}
					if len(next) > maxPlainStates {
						return r.none, work
					}
				}
			}
			level = next
		}
		if all == nil {
			all = level[0]
		}
		if len(level) > 1 || level[0] != all {
			return r.none, work
		}
	}
	return all, work
}

// plainReach returns up to how many plain characters may follow n, whichever they are, at most limit.
func (r *arena) plainReach(n *node, limit int) (reach, work int) {
	for ; reach < limit; reach++ {
		next, cost := r.plainNext(n)
		work += cost
		if next == n {
			return limit, work
		}
		if next.kind == kindNone {
			break
		}
		n = next
	}
	return reach, work
}
