package tokenizer

// casedWord is the pattern of GPT-4o (contractions, digits = 3) and of Tekken (digits = 1): words break where lower case
// turns into upper case. It matches everywhere.
func casedWord(digits int, contractions bool) matcher {
	return func(s string, i int) (start, end int) {
		c, n := at(s, i)
		// The character in front of a word may be anything but a line break, a letter or a number.
		front := i
		if c&(letter|number) == 0 && s[i] != '\r' && s[i] != '\n' {
			front = i + n
		}
		for _, pattern := range []func(string, int) int{lowerEnd, upperEnd} {
			for _, from := range []int{front, i} {
				if end := pattern(s, from); end > from {
					if contractions {
						end = contraction(s, end, true)
					}
					return i, end
				}
			}
		}
		if c&number != 0 {
			return i, upTo(s, i, number, digits)
		}
		j := i
		if s[i] == ' ' {
			j++
		}
		if end := run(s, j, 0, space|letter|number); end > j {
			return i, lineBreaks(s, end, true)
		}
		return i, lineWord(s, i)
	}
}

// lowerEnd is [upper]*[lower]+ at i, or i. Characters without case are in both sets.
func lowerEnd(s string, i int) int {
	top := run(s, i, upper, 0)
	if end := run(s, top, lower, 0); end > top {
		return end
	}
	// Give back characters until one can begin the second half; it ends where it meets one with upper case.
	for back := top; back > i; {
		back--
		for back > i && s[back]&0xC0 == 0x80 {
			back--
		}
		if c, _ := at(s, back); c&lower != 0 {
			return run(s, back, lower, 0)
		}
	}
	return i
}

// upperEnd is [upper]+[lower]* at i, or i.
func upperEnd(s string, i int) int {
	top := run(s, i, upper, 0)
	if top == i {
		return i
	}
	return run(s, top, lower, 0)
}
