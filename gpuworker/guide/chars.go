package guide

import (
	"slices"
	"unicode/utf8"
)

// encoding is how a character of the text that a pattern describes is written.
type encoding int

const (
	plain  encoding = iota // as UTF-8
	quoted                 // inside a JSON string, without needless escapes
)

// shortEscapes are the letters of JSON's short escapes.
var shortEscapes = map[rune]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// manySequences is from how many byte sequences on a class of characters becomes an automaton, whose
// derivatives cost one step.
const manySequences = 12

// chars returns one character of the given ranges, which are pairs in ascending order.
func (b *builder) chars(e encoding, ranges []rune) *node {
	var parts []*node
	for i := 0; i+1 < len(ranges); i += 2 {
		low, high := ranges[i], ranges[i+1]
		if e == quoted {
			low = b.escapes(&parts, low, high)
		}
		b.sequences(&parts, low, high)
	}
	n := b.alt(parts...)
	if n.kind == kindAlt && len(n.kids) > manySequences {
		if b.classesOf[n] == nil {
			b.classesOf[n] = b.determinise(n)
		}
		return b.classesOf[n]
	}
	return n
}

// escapes adds the characters of a range that JSON escapes, and those between them, and returns the
// first that is left to be written as it is.
func (b *builder) escapes(parts *[]*node, low, high rune) rune {
	for ; low <= min(high, 0x1f); low++ {
		*parts = append(*parts, b.escaped(low))
	}
	for _, c := range []rune{'"', '\\'} {
		if low <= c && c <= high {
			b.sequences(parts, low, c-1)
			*parts = append(*parts, b.escaped(c))
			low = c + 1
		}
	}
	return low
}

// escaped is a character that JSON escapes, by its short escape, or else by its number.
func (b *builder) escaped(c rune) *node {
	if letter, ok := shortEscapes[c]; ok {
		return b.lit(`\` + string(letter))
	}
	const lower, upper = "0123456789abcdef", "0123456789ABCDEF"
	last := string(lower[c&15])
	if upper[c&15] != lower[c&15] {
		last += string(upper[c&15])
	}
	return b.seq(b.lit(`\u00`), b.one(lower[c>>4]), b.anyOf(last))
}

// sequences adds the UTF-8 of a range of characters, surrogates left out, as sequences of byte ranges.
func (b *builder) sequences(parts *[]*node, low, high rune) {
	if low > high {
		return
	}
	if low <= 0xdfff && high >= 0xd800 {
		b.sequences(parts, low, 0xd7ff)
		b.sequences(parts, 0xe000, high)
		return
	}
	for _, last := range []rune{0x7f, 0x7ff, 0xffff} { // of one length
		if low <= last && last < high {
			b.sequences(parts, low, last)
			b.sequences(parts, last+1, high)
			return
		}
	}
	for i := 1; i < utf8.UTFMax && high > 0x7f; i++ { // aligned, so that each byte is a range of its own
		tail := rune(1)<<(6*i) - 1
		if low&^tail == high&^tail {
			continue
		}
		if low&tail != 0 {
			b.sequences(parts, low, low|tail)
			b.sequences(parts, (low|tail)+1, high)
			return
		}
		if high&tail != tail {
			b.sequences(parts, low, (high&^tail)-1)
			b.sequences(parts, high&^tail, high)
			return
		}
	}
	first, last := []byte(string(low)), []byte(string(high))
	n := b.empty
	for i := len(first) - 1; i >= 0; i-- {
		n = b.cat(b.bytesOf(first[i], last[i]), n)
	}
	*parts = append(*parts, n)
	b.spend(1)
}

// anyChar is one character.
func (b *builder) anyChar(e encoding) *node { return b.chars(e, []rune{0, utf8.MaxRune}) }

// text is a literal in an encoding.
func (b *builder) text(e encoding, s string) *node {
	if e == plain {
		return b.lit(s)
	}
	var parts []*node
	run := 0 // start of what needs no escape
	for i, c := range s {
		if c > 0x1f && c != '"' && c != '\\' {
			continue
		}
		parts = append(parts, b.lit(s[run:i]), b.escaped(c))
		run = i + 1
	}
	return b.seq(append(parts, b.lit(s[run:]))...)
}

// negated returns the ranges that are not in the given ones, which are ascending.
func negated(ranges []rune) []rune {
	out := make([]rune, 0, len(ranges)+2)
	next := rune(0)
	for i := 0; i+1 < len(ranges); i += 2 {
		if ranges[i] > next {
			out = append(out, next, ranges[i]-1)
		}
		next = max(next, ranges[i+1]+1)
	}
	if next <= utf8.MaxRune {
		out = append(out, next, utf8.MaxRune)
	}
	return slices.Clip(out)
}
