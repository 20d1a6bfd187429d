package tokenizer

import "unicode/utf8"

// The patterns of families that differ from Llama 3 or GPT-4o in one point. Those that look far ahead
// are two matchers, so that a text of one class takes linear time.

// sentenceWord is the pattern of K-EXAONE, in which a word goes on over single spaces between
// letters: [^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+. It matches everywhere.
func sentenceWord(s string, i int) (start, end int) {
	if end := contraction(s, i, true); end > i {
		return i, end
	}
	c, n := at(s, i)
	from := i
	if c&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n' {
		from = i + n
	}
	if end := sentence(s, from); end > from {
		return i, end
	}
	if c&number != 0 {
		return i, i + n
	}
	if end := otherWord(s, i, space|letter|number); end > i {
		if end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
			end++
		}
		return i, end
	}
	return i, lineWord(s, i)
}

// sentence returns the end of letters with their marks and single spaces between, or i.
func sentence(s string, i int) int {
	for next := i; ; next++ { // over one space
		c, n := at(s, next)
		if c&letter == 0 {
			return i
		}
		for c&letter != 0 {
			i = run(s, next+n, mark, 0)
			next = i
			c, n = at(s, next)
		}
		if next >= len(s) || s[next] != ' ' {
			return i
		}
	}
}

// beforeBreaks splits a text before each run of line breaks, as the pattern (?:\r?\n)+(?!\r?\n) does
// whose matches are merged with the text after them. It matches everywhere.
func beforeBreaks(s string, i int) (start, end int) {
	for end = i; breakAt(s, end) > 0; {
		end += breakAt(s, end)
	}
	for end < len(s) && breakAt(s, end) == 0 {
		end++
	}
	return i, end
}

// breakAt returns the length of a line break at i, or 0.
func breakAt(s string, i int) int {
	switch {
	case i < len(s) && s[i] == '\n':
		return 1
	case i+1 < len(s) && s[i] == '\r' && s[i+1] == '\n':
		return 2
	}
	return 0
}

// wholeNumbers and threesFromTheRight together are \d{1,3}(?=(?:\d{3})*\b). The first isolates the
// runs of decimal digits that no word character follows, and the second divides them.
func wholeNumbers(s string, i int) (start, end int) {
	for i < len(s) {
		c, n := at(s, i)
		if c&decimal == 0 {
			i += n
			continue
		}
		end := run(s, i, decimal, 0)
		if c, _ := at(s, end); c&word == 0 {
			return i, end
		}
		i = end
	}
	return len(s), len(s)
}

// threesFromTheRight divides a run of digits. Any other piece stays whole: a piece that ends with a
// digit is such a run, because wholeNumbers isolates every run at the end of a piece.
func threesFromTheRight(s string, i int) (start, end int) {
	if last, _ := utf8.DecodeLastRuneInString(s); classOf(last)&decimal == 0 {
		return i, len(s)
	}
	n := 3
	if i == 0 {
		n = (utf8.RuneCountInString(s)-1)%3 + 1
	}
	return i, upTo(s, i, decimal, n)
}

// blanks divides white space without line breaks into 512, 256 and so on down to 1 characters, as
// the pattern of Jais 2 does with what Llama 3's leaves whole. Other pieces stay as they are: none of
// them ends with white space other than a line break.
func blanks(s string, i int) (start, end int) {
	last, _ := utf8.DecodeLastRuneInString(s)
	if last == '\n' || last == '\r' || classOf(last)&space == 0 {
		return i, len(s)
	}
	size, count := 512, utf8.RuneCountInString(s[i:upTo(s, i, space, 512)])
	for size > count {
		size /= 2
	}
	return i, upTo(s, i, space, size)
}
