package jinja

import (
	"iter"
	"strings"
	"unicode/utf8"
)

// str is a string value with the origin of each of its bytes: the template wrote it, or it came
// from the caller in a variable. The prompt's special tokens are recognised in the template's bytes
// alone.
//
// The zero value of origin means the caller. An operation that builds a str from bare text, as in
// str{text: f(s.text)}, therefore gives the caller's text. Text becomes the template's in two ways
// only: by own, of a literal in the source or a text that this package writes itself, and by
// keeping the origin of an operand.
type str struct {
	text   string
	origin *origin // nil: every byte came from the caller
}

// origin has a byte for each byte of a text: ownByte or callerByte. It does not change.
type origin struct{ of string }

const (
	callerByte = 0
	ownByte    = 1
)

// owned is the origin of a text that the template wrote as a whole. Its field is not used.
var owned = &origin{}

// own is a text that the template wrote.
func own(text string) str { return str{text, owned} }

// uniform reports that all bytes have one origin, nil or owned.
func (s str) uniform() bool { return s.origin == nil || s.origin == owned }

// pure reports that nothing of the text came from the caller.
func (s str) pure() bool {
	return s.text == "" || s.origin == owned || s.origin != nil && strings.IndexByte(s.origin.of, callerByte) < 0
}

// slice is the text from one byte to another.
func (s str) slice(from, to int) str {
	if s.uniform() {
		return str{s.text[from:to], s.origin}
	}
	return str{s.text[from:to], &origin{s.origin.of[from:to]}}
}

// originOf is owned if all of s is the template's, otherwise nil: the origin of a text that depends
// on s as a whole.
func (s str) originOf() *origin {
	if s.pure() {
		return owned
	}
	return nil
}

// runs yields the parts of one origin each.
func (s str) runs() iter.Seq[str] {
	return func(yield func(str) bool) {
		if s.uniform() {
			if s.text != "" {
				yield(s)
			}
			return
		}
		for pos := 0; pos < len(s.text); {
			end, from := len(s.text), (*origin)(nil)
			if s.origin.of[pos] == ownByte {
				from = owned
			}
			if n := strings.IndexByte(s.origin.of[pos:], ownByte+callerByte-s.origin.of[pos]); n >= 0 {
				end = pos + n
			}
			if !yield(str{s.text[pos:end], from}) {
				return
			}
			pos = end
		}
	}
}

// mapRuns changes each part of one origin separately. It is only correct for changes of single
// characters.
func (r *run) mapRuns(s str, change func(string) string) str {
	if s.uniform() {
		out := change(s.text)
		r.room(len(out))
		return str{out, s.origin}
	}
	out := r.buffer()
	for part := range s.runs() {
		out.write(str{change(part.text), part.origin})
	}
	return out.str()
}

// mapCase changes the case of a text, which depends on neighbouring characters. Each character of
// the result has the origin of the character at its position. If the lengths differ, a text of both
// origins becomes the caller's.
func (r *run) mapCase(s str, change func(string) string) str {
	out := change(s.text)
	r.room(len(out))
	switch {
	case s.uniform():
		return str{out, s.origin}
	case utf8.RuneCountInString(out) != utf8.RuneCountInString(s.text):
		return str{out, s.originOf()}
	}
	var marks strings.Builder
	marks.Grow(len(out))
	pos := 0
	for _, c := range out {
		_, width := utf8.DecodeRuneInString(s.text[pos:])
		for range utf8.RuneLen(c) {
			marks.WriteByte(s.origin.of[pos])
		}
		pos += width
	}
	return str{out, &origin{marks.String()}}
}

// spans are the ranges of bytes that the template wrote, ascending and with something between them.
func (s str) spans() [][2]int {
	var out [][2]int
	pos := 0
	for part := range s.runs() {
		if part.origin == owned {
			out = append(out, [2]int{pos, pos + len(part.text)})
		}
		pos += len(part.text)
	}
	return out
}

// join puts texts together under the limit.
func (r *run) join(texts ...str) str {
	total, same := 0, true
	for _, t := range texts {
		total += len(t.text)
		r.room(total)
		same = same && t.uniform() && t.origin == texts[0].origin
	}
	if !same {
		out := r.buffer()
		out.text.Grow(total)
		out.marks.Grow(total)
		for _, t := range texts {
			out.write(t)
		}
		return out.str()
	}
	var all strings.Builder
	all.Grow(total)
	for _, t := range texts {
		all.WriteString(t.text)
	}
	if total == 0 {
		return own("")
	}
	return str{all.String(), texts[0].origin}
}

// repeatText is a text n times over.
func (r *run) repeatText(s str, n int) str {
	if s.text == "" || n <= 0 {
		return own("")
	}
	if n > r.limits.Text {
		r.room(-1)
	}
	r.room(len(s.text) * n)
	out := str{strings.Repeat(s.text, n), s.origin}
	if !s.uniform() {
		out.origin = &origin{strings.Repeat(s.origin.of, n)}
	}
	return out
}
