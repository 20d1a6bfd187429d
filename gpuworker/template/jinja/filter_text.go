package jinja

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

func filterTrim(r *run, v Value, a []Value) Value {
	return like(v, r.strip(r.text(v), or(a[0], nil), true, true))
}

func filterReplace(r *run, v Value, a []Value) Value {
	count := -1
	if given(a[2]) && a[2] != nil {
		count = r.whole(a[2], -1)
	}
	return r.replace(r.text(v), r.text(a[0]).text, r.text(a[1]), count)
}

func filterCenter(r *run, v Value, a []Value) Value {
	return like(v, r.pad(r.text(v), r.whole(a[0], 80), own(" "), '^'))
}

var words = regexp.MustCompile(`[\p{L}\p{N}_]+`)

func filterWordCount(r *run, v Value, _ []Value) Value {
	return len(words.FindAllString(r.text(v).text, -1))
}

// filterTitle begins a word after a blank, a hyphen or an opening bracket; apostrophes do not.
func filterTitle(r *run, v Value, _ []Value) Value { return r.mapCase(r.text(v), titleWords) }

func titleWords(s string) string {
	var out strings.Builder
	for rest := s; rest != ""; {
		end := strings.IndexFunc(rest, beginsWord)
		if end < 0 {
			end = len(rest)
		}
		if end > 0 {
			_, width := utf8.DecodeRuneInString(rest)
			out.WriteString(uppered(rest[:width]) + lowered(rest[width:end]))
		}
		between := len(rest[end:]) - len(strings.TrimLeftFunc(rest[end:], beginsWord))
		out.WriteString(rest[end : end+between])
		rest = rest[end+between:]
	}
	return out.String()
}

func beginsWord(c rune) bool { return isSpace(c) || strings.ContainsRune("-({[<", c) }

// lineBreaks are what Python's splitlines cuts at.
const lineBreaks = "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029"

// part is a range of a text's bytes.
type part struct{ from, to int }

// lines cuts text into lines, with their ends if asked.
func lines(s string, ends bool) []part {
	var out []part
	for from := 0; from < len(s); {
		pos := strings.IndexAny(s[from:], lineBreaks)
		if pos < 0 {
			return append(out, part{from, len(s)})
		}
		pos += from
		_, width := utf8.DecodeRuneInString(s[pos:])
		if strings.HasPrefix(s[pos:], "\r\n") {
			width = 2
		}
		end := pos
		if ends {
			end += width
		}
		out = append(out, part{from, end})
		from = pos + width
	}
	return out
}

// filterIndent puts blanks before each line but the first and the empty ones.
func filterIndent(r *run, v Value, a []Value) Value {
	blanks, ok := textOf(or(a[0], 4))
	if !ok {
		blanks = r.repeatText(own(" "), max(r.whole(a[0], 4), 0))
	}
	first, blank := flag(a[1]), flag(a[2])
	s, ok := textOf(v)
	if !ok {
		r.defined(v)
		r.fail("indent takes a string, not %s", typeName(v))
	}
	out := r.buffer()
	if first {
		out.write(blanks)
	}
	end := 0
	for i, line := range lines(s.text+"\n", false) {
		if i > 0 {
			out.write(str{"\n", s.slice(end, line.from).originOf()}) // for whichever line break it was
			if blank || line.from < line.to {
				out.write(blanks)
			}
		}
		out.write(s.slice(line.from, line.to))
		end = line.to
	}
	return like(v, out.str())
}

func filterFormat(r *run, v Value, a *callArguments) Value {
	if len(a.placed) > 0 && len(a.names) > 0 {
		r.fail("can't handle positional and keyword arguments at the same time")
	}
	if len(a.names) > 0 {
		d := &Dict{}
		for i, name := range a.names {
			d.put(str{text: name}, name, a.named[i])
		}
		return r.percent(r.text(v), d)
	}
	return r.percent(r.text(v), newTuple(a.placed...))
}
