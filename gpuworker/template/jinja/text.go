package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// text is Python's str of a value, which {{ }} prints. Numbers and the names of none, true and
// false are the template's text, even if the caller supplied the value.
func (r *run) text(v Value) str {
	switch v := v.(type) {
	case str:
		return v
	case markup:
		return v.str
	case *undefined:
		return own("")
	}
	return r.repr(v)
}

// repr is Python's repr of a value.
func (r *run) repr(v Value) str {
	out := r.buffer()
	out.repr(v)
	return out.str()
}

// repr writes a value as Python writes it in a list.
func (b *buffer) repr(v Value) {
	switch v := v.(type) {
	case nil:
		b.own("None")
	case bool:
		b.own(map[bool]string{true: "True", false: "False"}[v])
	case int:
		b.own(strconv.Itoa(v))
	case *big.Int:
		b.own(b.run.digits(v))
	case float64:
		b.own(floatText(v))
	case str:
		b.quoted(v)
	case markup:
		b.own("Markup(")
		b.quoted(v.str)
		b.own(")")
	case *List:
		b.list("[", "]", v.items)
	case *tuple:
		end := ")"
		if len(v.items) == 1 {
			end = ",)"
		}
		b.list("(", end, v.items)
	case *Dict:
		b.dict(v)
	case *undefined:
		b.own("Undefined")
	case *interval:
		b.own("range(" + strconv.Itoa(v.start) + ", " + strconv.Itoa(v.stop))
		if v.stride != 1 {
			b.own(", " + strconv.Itoa(v.stride))
		}
		b.own(")")
	case *view:
		b.own("dict_" + v.kind)
		b.list("([", "])", v.items())
	case *namespace:
		b.own("<Namespace ")
		b.dict(v.attributes)
		b.own(">")
	default:
		// Python prints where in memory it lies.
		b.run.fail("printing a %s is not supported", typeName(v))
	}
}

func (b *buffer) list(begin, end string, items []Value) {
	b.run.enter()
	b.own(begin)
	for i, item := range items {
		if i > 0 {
			b.own(", ")
		}
		b.repr(item)
	}
	b.own(end)
	b.run.leave()
}

func (b *buffer) dict(d *Dict) {
	b.run.enter()
	b.own("{")
	for i, e := range d.entries {
		if i > 0 {
			b.own(", ")
		}
		b.repr(e.key)
		b.own(": ")
		b.repr(e.value)
	}
	b.own("}")
	b.run.leave()
}

// quoted writes a string in the quotes that Python chooses, with escapes for what cannot be seen.
func (b *buffer) quoted(s str) {
	quote := "'"
	if strings.Contains(s.text, "'") && !strings.Contains(s.text, `"`) {
		quote = `"`
	}
	b.own(quote)
	b.write(b.run.mapRuns(s, func(part string) string { return escapedIn(part, quote[0]) }))
	b.own(quote)
}

// escapedIn writes characters as they stand between two quotes.
func escapedIn(s string, quote byte) string {
	out := make([]byte, 0, len(s))
	for _, c := range s {
		switch {
		case c == rune(quote) || c == '\\':
			out = append(out, '\\', byte(c))
		case c == '\n':
			out = append(out, `\n`...)
		case c == '\r':
			out = append(out, `\r`...)
		case c == '\t':
			out = append(out, `\t`...)
		case unicode.IsPrint(c):
			out = append(out, string(c)...)
		default:
			out = append(out, escapeRune(c)...)
		}
	}
	return string(out)
}

// digits writes a large number; maxBits is within what Python writes.
func (r *run) digits(n *big.Int) string {
	const most = 4300
	text := n.String()
	if len(strings.TrimPrefix(text, "-")) > most {
		r.fail("exceeds the limit (%d digits) for integer string conversion", most)
	}
	return text
}

// floatText is Python's shortest text that reads back as the number.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
