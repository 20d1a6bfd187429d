package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// text is Python's str of a value, which is what {{ }} prints.
func (r *run) text(v Value) string {
	switch v := v.(type) {
	case string:
		return v
	case markup:
		return string(v)
	case *undefined:
		return ""
	}
	out := r.buffer()
	out.repr(v)
	return out.String()
}

// repr writes a value as Python writes it in a list.
func (b *buffer) repr(v Value) {
	switch v := v.(type) {
	case nil:
		b.write("None")
	case bool:
		b.write(map[bool]string{true: "True", false: "False"}[v])
	case int:
		b.write(strconv.Itoa(v))
	case *big.Int:
		b.write(b.run.digits(v))
	case float64:
		b.write(floatText(v))
	case string:
		b.quoted(v)
	case markup:
		b.write("Markup(")
		b.quoted(string(v))
		b.write(")")
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
		b.write("Undefined")
	case *interval:
		b.write("range(" + strconv.Itoa(v.start) + ", " + strconv.Itoa(v.stop))
		if v.stride != 1 {
			b.write(", " + strconv.Itoa(v.stride))
		}
		b.write(")")
	case *view:
		b.write("dict_" + v.kind)
		b.list("([", "])", v.items())
	case *namespace:
		b.write("<Namespace ")
		b.dict(v.attributes)
		b.write(">")
	default:
		// Python prints where in memory it lies.
		b.run.fail("printing a %s is not supported", typeName(v))
	}
}

func (b *buffer) list(begin, end string, items []Value) {
	b.run.enter()
	b.write(begin)
	for i, item := range items {
		if i > 0 {
			b.write(", ")
		}
		b.repr(item)
	}
	b.write(end)
	b.run.leave()
}

func (b *buffer) dict(d *Dict) {
	b.run.enter()
	b.write("{")
	for i, e := range d.entries {
		if i > 0 {
			b.write(", ")
		}
		b.repr(e.key)
		b.write(": ")
		b.repr(e.value)
	}
	b.write("}")
	b.run.leave()
}

// quoted writes a string in the quotes that Python chooses, with escapes for what cannot be seen.
func (b *buffer) quoted(s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	out := make([]byte, 0, len(s)+2)
	out = append(out, quote)
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
	b.write(string(append(out, quote)))
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
