package generate

import "strings"

// stopMatcher finds the first stop string in a text that comes in pieces. It holds back text that
// may be the start of a stop string until the next pieces decide it.
type stopMatcher struct {
	stops   []string
	include bool // the matched stop string is part of the text
	held    string
}

// push adds text and returns what may be delivered. A match ends the text. Of several matches the
// one that ends first wins, and the longest of those that end together.
func (m *stopMatcher) push(text string) (show, matched string) {
	if len(m.stops) == 0 {
		return text, ""
	}
	text = m.held + text
	end := len(text) + 1
	for _, stop := range m.stops {
		start := strings.Index(text, stop)
		if start < 0 {
			continue
		}
		if e := start + len(stop); e < end || (e == end && len(stop) > len(matched)) {
			end, matched = e, stop
		}
	}
	if matched != "" {
		m.held = ""
		if m.include {
			return text[:end], matched
		}
		return text[:end-len(matched)], matched
	}
	keep := m.undecided(text)
	m.held = text[len(text)-keep:]
	return text[:len(text)-keep], ""
}

// pass adds text in which stop strings do not count, and returns it after the text held back.
func (m *stopMatcher) pass(text string) string {
	text = m.held + text
	m.held = ""
	return text
}

// undecided is the length of the longest suffix of text that starts a stop string.
func (m *stopMatcher) undecided(text string) int {
	keep := 0
	for _, stop := range m.stops {
		for n := min(len(stop)-1, len(text)); n > keep; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				keep = n
				break
			}
		}
	}
	return keep
}
