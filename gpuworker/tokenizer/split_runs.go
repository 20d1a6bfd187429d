package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// runs is "\s?[in]+", without the white space if spaced is false, and with no more than most
// characters if most is not zero.
func runs(in func(rune) bool, spaced bool, most int) matcher {
	end := func(s string, i int) int {
		for n := 0; i < len(s) && (most == 0 || n < most); n++ {
			r, w := utf8.DecodeRuneInString(s[i:])
			if !in(r) {
				break
			}
			i += w
		}
		return i
	}
	return func(s string, i int) (int, int) {
		for i < len(s) {
			c, w := at(s, i)
			if spaced && c&space != 0 {
				if e := end(s, i+w); e > i+w {
					return i, e
				}
			}
			if e := end(s, i); e > i {
				return i, e
			}
			i += w
		}
		return len(s), len(s)
	}
}

// ofClass reports whether a character has any property of c.
func ofClass(c class) func(rune) bool {
	return func(r rune) bool { return classOf(r)&c != 0 }
}

// ofRanges reports whether a character is in a list of ranges, written as ascending pairs of first
// and last.
func ofRanges(bounds []rune) func(rune) bool {
	return func(r rune) bool {
		for i := 0; i < len(bounds) && r >= bounds[i]; i += 2 {
			if r <= bounds[i+1] {
				return true
			}
		}
		return false
	}
}

// threeDigits is [0-9][0-9][0-9].
func threeDigits(s string, i int) (start, end int) {
	n := 0
	for ; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			n = 0
			continue
		}
		if n++; n == 3 {
			return i - 2, i + 1
		}
	}
	return len(s), len(s)
}

// trailingSpace is \s+ at the end of the text.
func trailingSpace(s string, i int) (start, end int) {
	start = len(s)
	for start > i {
		r, w := utf8.DecodeLastRuneInString(s[:start])
		if classOf(r)&space == 0 {
			break
		}
		start -= w
	}
	return start, len(s)
}

// phrases is " ?[^(\s|.,!?…。，、।۔،)]+": text between white space, brackets and the marks that end a
// phrase.
func phrases(s string, i int) (start, end int) {
	inside := func(r rune, n int) bool {
		return n > 0 && classOf(r)&space == 0 && !strings.ContainsRune("(|.,!?…。，、।۔،)", r)
	}
	for i < len(s) {
		from := i
		if s[i] == ' ' {
			i++
		}
		end := i
		for r, n := utf8.DecodeRuneInString(s[end:]); inside(r, n); r, n = utf8.DecodeRuneInString(s[end:]) {
			end += n
		}
		if end > i {
			return from, end
		}
		if i == from {
			_, n := utf8.DecodeRuneInString(s[i:])
			i += n
		}
	}
	return len(s), len(s)
}
