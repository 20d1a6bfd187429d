package jinja

import "strings"

// buffer collects a text under the limit.
type buffer struct {
	run    *run
	text   strings.Builder
	origin *origin // of all bytes while they have one origin
	mixed  bool    // there are two, and marks has a byte for each of the text's
	marks  strings.Builder
}

func (r *run) buffer() *buffer { return &buffer{run: r} }

func (b *buffer) write(s str) {
	if len(s.text) > b.run.limits.Text-b.text.Len() {
		exceedAt(b.run.line, "more than %d bytes of output", b.run.limits.Text)
	}
	switch {
	case s.text == "":
		return
	case b.mixed:
	case b.text.Len() == 0 && s.uniform():
		b.origin = s.origin
	case s.origin != b.origin || !s.uniform():
		b.mixed = true
		b.mark(b.origin, b.text.Len())
	}
	if b.mixed {
		b.mark(s.origin, len(s.text))
	}
	b.text.WriteString(s.text)
}

// mark appends the marks of n bytes of an origin.
func (b *buffer) mark(from *origin, n int) {
	same := callerMarks
	switch from {
	case nil:
	case owned:
		same = ownMarks
	default:
		b.marks.WriteString(from.of)
		return
	}
	for ; n > len(same); n -= len(same) {
		b.marks.WriteString(same)
	}
	b.marks.WriteString(same[:n])
}

var (
	callerMarks = strings.Repeat(string(rune(callerByte)), 1024)
	ownMarks    = strings.Repeat(string(rune(ownByte)), 1024)
)

// own writes a text of the template.
func (b *buffer) own(text string) { b.write(own(text)) }

// str is the written text. It is valid UTF-8, because every cut is between characters.
func (b *buffer) str() str {
	if !b.mixed {
		return str{b.text.String(), b.origin}
	}
	return str{b.text.String(), &origin{b.marks.String()}}
}
