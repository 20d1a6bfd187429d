package guide

import (
	"bytes"
	"sort"
	"unicode/utf8"
)

// Where a grammar leaves one text, such as the rest of a declared key, many tokens are allowed: every one
// with which that text begins. The usual spelling is the one that the model's tokenizer gives, which
// is nearly always the model's choice too. A state with usual spelling allows the first token of it alone:
//
//	"temperature":   t te tem temp temperature ...   without
//	                 temperature                     with usual spelling
//
// So masks of one token follow each other, and a caller may append these tokens without sampling.
//
// The rule is a function of the state: the text that all texts of the state begin with, up to maxSpelled
// bytes, is encoded, and its first token is the mask. The end of that text is left to the model, as the token
// there may go on into what follows (":" and ":\""): no token is spelled if another token of the
// vocabulary begins inside it and reaches beyond the text.

const (
	// maxSpelled bounds the text that is encoded for one mask, in bytes.
	maxSpelled = 96
	// maxSpellWork bounds the terms that derivatives visit to find that text, remembered or not.
	maxSpellWork = 1 << 14
)

// SetSpelling sets how the model's tokenizer writes a text that follows other text. It must be called before
// the vocabulary is used. Without it, UsualSpelling changes nothing.
func (v *Vocabulary) SetSpelling(encode func(text string) []int32) { v.encode = encode }

// UsualSpelling returns the state from which on masks allow one token where the grammar leaves one text.
func (s State) UsualSpelling() State {
	s.usual = true
	return s
}

// spell returns the only token of a state with usual spelling.
func (w *Walk) spell() (id int32, ok bool) {
	v := w.state.grammar.vocabulary
	if !w.state.usual || v.encode == nil {
		return 0, false
	}
	text, whole := w.forcedText()
	if len(text) == 0 {
		return 0, false
	}
	ids := v.encode(string(text))
	if len(ids) == 0 {
		return 0, false
	}
	token := v.bytesOf(ids[0])
	if len(token) == 0 || !bytes.HasPrefix(text, token) {
		return 0, false
	}
	if !whole {
		for i := range token {
			if v.longer(text[i:]) {
				return 0, false
			}
		}
	}
	return ids[0], true
}

// forcedText returns the text with which all texts of the state begin, in whole characters. whole reports whether no
// token reaches beyond it, because the text of the grammar ends there or a control token follows.
func (w *Walk) forcedText() (text []byte, whole bool) {
	r, n, work := w.state.arena, w.state.node, 0
	for len(text) < maxSpelled {
		next, c, cost, known := r.only(n, maxSpellWork-work)
		if work += cost; !known {
			w.steps += cost * termSteps
		}
		if next == nil || c == Control[0] {
			whole = n == r.empty || next != nil
			break
		}
		text, n = append(text, c), next
	}
	for i := 0; i < len(text); {
		if !utf8.FullRune(text[i:]) {
			return text[:i], false
		}
		c, size := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError && size == 1 {
			return text[:i], false
		}
		i += size
	}
	return text, whole
}

// sole is what only remembers of a node.
type sole struct {
	next *node // nil: there is none
	c    byte
	work int32
}

// only returns the byte with which every text of n begins, and the state behind it; nil if there is no such byte. work is
// the terms that finding it visits, remembered or not; more than most find nothing. known reports that it was remembered.
func (r *arena) only(n *node, most int) (next *node, c byte, work int, known bool) {
	known = n.sole != nil
	if !known {
		n.sole = r.findOnly(n)
		r.bytes += nodeBytes / 8
	}
	if work = int(n.sole.work); work > most {
		return nil, 0, work, known
	}
	return n.sole.next, n.sole.c, work, known
}

func (r *arena) findOnly(n *node) *sole {
	out := &sole{work: 1}
	if n.nullable {
		return out
	}
	head := n
	if n.kind == kindCat {
		head = n.a
	}
	if head.kind == kindLit {
		out.c, out.next = head.lit[0], r.step(n, head.lit[0])
		return out
	}
	for _, c := range r.reps {
		if out.work += int32(r.costOf(n)); out.work > maxSpellWork {
			return &sole{work: out.work}
		}
		next := r.step(n, c)
		if next.kind == kindNone {
			continue
		}
		if out.next != nil || !r.alone(c) {
			return &sole{work: out.work}
		}
		out.next, out.c = next, c
	}
	return out
}

// alone reports whether no other byte is of the class of c.
func (r *arena) alone(c byte) bool {
	for other := range 256 {
		if byte(other) != c && r.classOf[other] == r.classOf[c] {
			return false
		}
	}
	return true
}

// longer reports whether a token begins with a text and goes on.
func (v *Vocabulary) longer(text []byte) bool {
	i := sort.Search(len(v.sorted), func(i int) bool { return bytes.Compare(v.text[v.sorted[i]], text) > 0 })
	return i < len(v.sorted) && bytes.HasPrefix(v.text[v.sorted[i]], text)
}
