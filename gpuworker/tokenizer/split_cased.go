package tokenizer

// cased describes a pattern whose words break where lower case changes to upper case.
type cased struct {
	digits       int   // most digits in a number
	contractions bool  // a word takes 's and the like with it
	slash        bool  // line breaks and slashes after punctuation belong to it; else line breaks only
	apart        class // each of these characters is a word, not a letter
}

// word is the pattern of GPT-4o and of those that derive from it. It matches everywhere.
func (p cased) word(s string, i int) (start, end int) {
	c, n := at(s, i)
	if c&p.apart != 0 {
		return i, run(s, i, p.apart, 0)
	}
	// The character before a word may be anything but a line break, a letter or a number.
	front := i
	if c&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n' {
		front = i + n
	}
	if end := p.letters(s, front, i); end > i {
		if p.contractions {
			end = contraction(s, end, true)
		}
		return i, end
	}
	if c&number != 0 {
		return i, upTo(s, i, number, p.digits)
	}
	if end := otherWord(s, i, space|letter|number); end > i {
		return i, lineBreaks(s, end, p.slash)
	}
	return i, lineWord(s, i)
}

// letters returns the end of a word whose letters begin at front, or at i, or i if there is none.
func (p cased) letters(s string, front, i int) int {
	if end := p.lowerEnd(s, front); end > front {
		return end
	}
	if end := p.lowerEnd(s, i); end > i {
		return end
	}
	if end := p.upperEnd(s, front); end > front {
		return end
	}
	return p.upperEnd(s, i)
}

// lowerEnd is [upper]*[lower]+ at i, or i. Characters without case are in both sets.
func (p cased) lowerEnd(s string, i int) int {
	top := run(s, i, upper, p.apart)
	if end := run(s, top, lower, p.apart); end > top {
		return end
	}
	// Backtrack until a character can start the second half, up to the first one with upper case.
	for back := top; back > i; {
		back--
		for back > i && s[back]&0xC0 == 0x80 {
			back--
		}
		if c, _ := at(s, back); c&lower != 0 {
			return run(s, back, lower, p.apart)
		}
	}
	return i
}

// upperEnd is [upper]+[lower]* at i, or i.
func (p cased) upperEnd(s string, i int) int {
	top := run(s, i, upper, p.apart)
	if top == i {
		return i
	}
	return run(s, top, lower, p.apart)
}
