package guide

import (
	"bytes"
	"slices"
	"sync/atomic"
)

// Vocabulary is the text of a model's tokens. It is immutable in use but for its cache of masks, and
// safe for concurrent use.
type Vocabulary struct {
	size   int // ids, text or not
	text   [][]byte
	plain  trie                      // tokens of slices[0]
	slices []slice                   // the longest first
	sorted []int32                   // tokens with text, in the order of their bytes
	encode func(text string) []int32 // see SetSpelling; nil: unknown

	nextArena atomic.Uint64
	masks     maskCache
}

// trie is some tokens by their bytes.
//
// It is in preorder: the children of a node follow it, and skip[i] is the node after the subtree of i. A
// walk that refuses a byte goes to skip[i] and has dropped every token below.
type trie struct {
	bytes []byte  // last byte of each node
	level []uint8 // bytes above each node
	skip  []int32
	first []int32 // tokens of node i are ids[first[i]:first[i+1]]
	ids   []int32
}

// maxTokenBytes is the longest token that constrained text contains.
const maxTokenBytes = 255

// NewVocabulary returns the vocabulary of size ids. text returns the bytes of an id that is text, and
// nothing for one that is not: control tokens, unused ones, those that a model never generates. A control
// token that composed constraints name has Control and its name as text.
// maxCache bounds the masks that are remembered, in bytes.
func NewVocabulary(size int, text func(id int32) []byte, maxCache int) *Vocabulary {
	v := &Vocabulary{size: size, text: make([][]byte, size)}
	order := make([]int32, 0, size)
	for id := range int32(size) {
		if t := text(id); len(t) > 0 && len(t) <= maxTokenBytes {
			v.text[id] = t
			order = append(order, id)
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return bytes.Compare(v.text[a], v.text[b]) })
	v.sorted = slices.Clone(order)
	v.slices = slicesOf(v.text, order, v.Words())
	v.plain = newTrie(v.text, slices.DeleteFunc(order, func(id int32) bool { return !v.slices[0].has(id) }))
	v.masks.limit = maxCache
	return v
}

// newTrie makes the trie of ids in the order of their bytes.
func newTrie(text [][]byte, order []int32) (t trie) {
	var open []int32 // nodes of the present path
	closeTo := func(depth int) {
		for len(open) > depth {
			t.skip[open[len(open)-1]] = int32(len(t.bytes))
			open = open[:len(open)-1]
		}
	}
	var last []byte
	for _, id := range order {
		b := text[id]
		common := 0
		for common < min(len(b), len(last)) && b[common] == last[common] {
			common++
		}
		closeTo(common)
		for i := common; i < len(b); i++ {
			open = append(open, int32(len(t.bytes)))
			t.bytes, t.level = append(t.bytes, b[i]), append(t.level, uint8(i))
			t.skip, t.first = append(t.skip, 0), append(t.first, int32(len(t.ids)))
		}
		t.ids = append(t.ids, id)
		last = b
	}
	closeTo(0)
	t.first = append(t.first, int32(len(t.ids)))
	return t
}

// Words is the length of a mask.
func (v *Vocabulary) Words() int { return (v.size + 31) / 32 }

// bytesOf returns the text of a token, nothing if it is not text.
func (v *Vocabulary) bytesOf(id int32) []byte {
	if id < 0 || int(id) >= v.size {
		return nil
	}
	return v.text[id]
}

// canEnd reports whether id may end a constrained text: it is not text itself.
func (v *Vocabulary) canEnd(id int32) bool {
	return id >= 0 && int(id) < v.size && (v.text[id] == nil || v.text[id][0] == Control[0])
}

// Words is the length of the masks of a state under a grammar.
func (s State) Words() int { return s.grammar.vocabulary.Words() }
