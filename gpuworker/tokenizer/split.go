package tokenizer

import "strings"

// matcher finds the first match of one pattern at or after from; start == len(s) without a match.
type matcher func(s string, from int) (start, end int)

// splitter splits a text by its patterns one after another: matches and the gaps between them
// become pieces, and the next pattern is applied to each piece on its own.
type splitter []matcher

// each calls word for every piece until word returns false, and reports whether it never did.
func (p splitter) each(s string, word func(string) bool) bool {
	if len(s) == 0 {
		return true
	}
	if len(p) == 0 {
		return word(s)
	}
	for done := 0; done < len(s); {
		start, end := p[0](s, done)
		if start > done && !p[1:].each(s[done:start], word) {
			return false
		}
		if end > start && !p[1:].each(s[start:end], word) {
			return false
		}
		done = end
	}
	return true
}

// contraction returns the end of 's 't 're 've 'm 'll 'd at i, or i. Without case, the long s (U+017F)
// is an s, as in (?i:'s).
func contraction(s string, i int, anyCase bool) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	fold := func(c byte) byte {
		if anyCase && c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	if anyCase && strings.HasPrefix(s[i+1:], "ſ") {
		return i + 1 + len("ſ")
	}
	switch a := fold(s[i+1]); a {
	case 's', 't', 'm', 'd':
		return i + 2
	case 'r', 'v', 'l':
		if i+2 < len(s) {
			if b := fold(s[i+2]); a == 'l' && b == 'l' || a != 'l' && b == 'e' {
				return i + 3
			}
		}
	}
	return i
}

// gpt2Word is the pattern of GPT-2; it matches everywhere.
func gpt2Word(s string, i int) (start, end int) {
	if end := contraction(s, i, false); end > i {
		return i, end
	}
	j := i
	if s[i] == ' ' {
		j++
	}
	switch c, n := at(s, j); {
	case n == 0 || c&space != 0:
		return i, spaceWord(s, i)
	case c&letter != 0:
		return i, run(s, j, letter, 0)
	case c&number != 0:
		return i, run(s, j, number, 0)
	}
	return i, run(s, j, 0, space|letter|number)
}

// llama3Word is the pattern of Llama 3, and of Qwen 2 with digits = 1. word is the set of letters,
// to which later families add marks. breaks includes line breaks after punctuation. It matches
// everywhere.
func llama3Word(digits int, word class, breaks bool) matcher {
	return func(s string, i int) (start, end int) {
		if end := contraction(s, i, true); end > i {
			return i, end
		}
		c, n := at(s, i)
		if c&word != 0 {
			return i, run(s, i, word, 0)
		}
		if c&number != 0 {
			return i, upTo(s, i, number, digits)
		}
		if s[i] != '\r' && s[i] != '\n' {
			if next, _ := at(s, i+n); next&word != 0 {
				return i, run(s, i+n, word, 0)
			}
		}
		if end := otherWord(s, i, space|word|number); end > i {
			if breaks {
				end = lineBreaks(s, end, false)
			}
			return i, end
		}
		return i, lineWord(s, i)
	}
}

// otherWord is " ?[^none]+" at i, or i.
func otherWord(s string, i int, none class) int {
	j := i
	if s[i] == ' ' {
		j++
	}
	if end := run(s, j, 0, none); end > j {
		return end
	}
	return i
}

func lineBreaks(s string, i int, slash bool) int {
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || slash && s[i] == '/') {
		i++
	}
	return i
}

// upTo returns the end of at most n characters with a property.
func upTo(s string, i int, want class, n int) int {
	for ; n > 0; n-- {
		c, w := at(s, i)
		if c&want == 0 {
			break
		}
		i += w
	}
	return i
}
