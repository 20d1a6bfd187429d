package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class is a set of the character properties that pre-tokenizers use.
type class uint16

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	space                     // \s
	punct                     // \p{P}
	symbol                    // \p{S}
	mark                      // \p{M}
	upper                     // Lu Lt Lm Lo M
	lower                     // Ll Lm Lo M
	han                       // \p{Han}
	decimal                   // \p{Nd}
	word                      // \w of Oniguruma: Alphabetic, M, Nd, Pc
)

var wordTables = []*unicode.RangeTable{unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc}

// planeClasses holds the classes of U+0000 to U+FFFF.
var planeClasses = func() *[1 << 16]class {
	var t [1 << 16]class
	fill := func(c class, tables ...*unicode.RangeTable) {
		for _, table := range tables {
			for _, r := range table.R16 {
				for i := uint32(r.Lo); i <= uint32(r.Hi); i += uint32(r.Stride) {
					t[i] |= c
				}
			}
		}
	}
	fill(letter, unicode.L)
	fill(number, unicode.N)
	fill(space, unicode.White_Space)
	fill(punct, unicode.P)
	fill(symbol, unicode.S)
	fill(mark, unicode.M)
	fill(upper, unicode.Lu, unicode.Lt, unicode.Lm, unicode.Lo, unicode.M)
	fill(lower, unicode.Ll, unicode.Lm, unicode.Lo, unicode.M)
	fill(han, unicode.Han)
	fill(decimal, unicode.Nd)
	fill(word, wordTables...)
	return &t
}()

func classOf(r rune) class {
	if uint32(r) < 1<<16 {
		return planeClasses[r]
	}
	var c class
	switch {
	case unicode.Is(unicode.L, r):
		c = letter
		switch {
		case unicode.Is(unicode.Ll, r):
			c |= lower
		case unicode.IsOneOf([]*unicode.RangeTable{unicode.Lu, unicode.Lt}, r):
			c |= upper
		default:
			c |= upper | lower
		}
	case unicode.Is(unicode.N, r):
		c = number
	case unicode.Is(unicode.P, r):
		c = punct
	case unicode.Is(unicode.S, r):
		c = symbol
	case unicode.Is(unicode.M, r):
		c = mark | upper | lower
	}
	if unicode.Is(unicode.Han, r) {
		c |= han
	}
	if unicode.Is(unicode.Nd, r) {
		c |= decimal
	}
	if unicode.IsOneOf(wordTables, r) {
		c |= word
	}
	return c
}

// at returns the class and width of the character at i. A byte that is not UTF-8 counts as the
// symbol U+FFFD. After the end the width is zero.
func at(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return planeClasses[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// run returns the end of the characters from i on that have a property of want and none of none.
func run(s string, i int, want, none class) int {
	for i < len(s) {
		c, n := at(s, i)
		if want != 0 && c&want == 0 || c&none != 0 {
			break
		}
		i += n
	}
	return i
}

// spaces returns the end of the white space from i on, the start of its last character, and the end
// of its last line break, or i if it has none.
func spaces(s string, i int) (end, last, newline int) {
	end, last, newline = i, i, i
	for end < len(s) {
		c, n := at(s, end)
		if c&space == 0 {
			break
		}
		last = end
		if end += n; s[last] == '\n' || s[last] == '\r' {
			newline = end
		}
	}
	return end, last, newline
}

// spaceWord is \s+(?!\S)|\s+ at i: all white space, except the last character if text follows and
// others precede it.
func spaceWord(s string, i int) int {
	end, last, _ := spaces(s, i)
	if end < len(s) && last > i {
		return last
	}
	return end
}

// lineWord is \s*[\r\n]+|\s+(?!\S)|\s+ at i.
func lineWord(s string, i int) int {
	end, last, newline := spaces(s, i)
	switch {
	case newline > i:
		return newline
	case end < len(s) && last > i:
		return last
	}
	return end
}
