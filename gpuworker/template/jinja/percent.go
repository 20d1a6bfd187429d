package jinja

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

var percentPattern = regexp.MustCompile(`^%(?:\(([^()]*)\))?([#0\- +]*)(\*|\d*)(?:\.(\*|\d*))?[hlL]?((?s:.))`)

// percent is Python's % of a string and one value, a tuple of them, or a dictionary.
func (r *run) percent(from str, v Value) str {
	format := from.text
	args, place, named := []Value{v}, 0, false
	if t, ok := v.(*tuple); ok {
		args = t.items
	}
	next := func() Value {
		if place >= len(args) {
			r.fail("not enough arguments for format string")
		}
		place++
		return args[place-1]
	}
	out := r.buffer()
	copied := func(n int) { // the next bytes of the format
		pos := len(from.text) - len(format)
		out.write(from.slice(pos, pos+n))
		format = format[n:]
	}
	for {
		pos := strings.IndexByte(format, '%')
		if pos < 0 {
			break
		}
		copied(pos)
		m := percentPattern.FindStringSubmatchIndex(format)
		if m == nil {
			r.fail("incomplete format: %.40q", format)
		}
		group := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return format[m[2*i]:m[2*i+1]]
		}
		if group(5) == "%" {
			out.write(str{"%", from.originOf()})
			format = format[m[1]:]
			continue
		}
		arg := next
		if m[2] >= 0 {
			d, ok := v.(*Dict)
			if !ok {
				r.fail("format requires a mapping")
			}
			named = true
			found, ok := d.text(group(1))
			if !ok {
				r.fail("the format names %q, which the mapping has not", group(1))
			}
			arg = func() Value { return found }
		}
		p := r.percentSpec(from.originOf(), group(2), group(3), group(4), m[8] >= 0, next)
		p.kind = group(5)[0]
		out.write(r.padTo(r.percentText(arg(), p), p, '>'))
		format = format[m[1]:]
	}
	switch v.(type) {
	case *Dict, *List, *interval, *undefined: // whatever could be asked for names
	default:
		if place < len(args) && !named {
			r.fail("not all arguments converted during string formatting")
		}
	}
	copied(len(format))
	return out.str()
}

func (r *run) percentSpec(from *origin, flags, width, precision string, precise bool, next func() Value) spec {
	p := spec{fill: str{" ", from}, precision: -1, alternate: strings.Contains(flags, "#")}
	count := func(text string, most int) int {
		if text == "*" {
			text = strconv.Itoa(r.whole(next(), 0))
		}
		if text == "" {
			return 0
		}
		return r.countOf(text, most)
	}
	if p.width = count(width, r.limits.Text); p.width < 0 {
		p.width, p.align = -p.width, '<'
	}
	if precise {
		p.precision = max(count(precision, maxPrecision), 0)
	}
	for _, sign := range []byte{' ', '+'} {
		if strings.IndexByte(flags, sign) >= 0 {
			p.sign = sign
		}
	}
	if strings.Contains(flags, "-") {
		p.align = '<'
	} else if strings.Contains(flags, "0") && p.align == 0 {
		p.fill.text, p.align = "0", '='
	}
	return p
}

// percentText writes one value.
func (r *run) percentText(v Value, p spec) str {
	switch p.kind {
	case 's', 'r':
		s := r.text(v)
		if p.kind == 'r' {
			s = r.repr(v)
		}
		if p.precision >= 0 {
			s = r.cut(s, nil, p.precision, nil).(str)
		}
		return r.unzeroed(s, p)
	case 'd', 'i', 'u', 'o', 'x', 'X':
		return own(r.percentInteger(v, p))
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !isNumber(v) {
			r.defined(v)
			r.fail("must be real number, not %s", typeName(v))
		}
		return own(r.floatTextBy(r.float(v), p))
	}
	r.fail("the format character %q is not supported", p.kind)
	return str{}
}

// unzeroed pads text with blanks where the flag for zeros is set: it means numbers.
func (r *run) unzeroed(s str, p spec) str {
	if p.align == '=' {
		p.fill.text, p.align = " ", '>'
		return r.padTo(s, p, '>')
	}
	return s
}

func (r *run) percentInteger(v Value, p spec) string {
	if f, ok := v.(float64); ok && strings.IndexByte("diu", p.kind) >= 0 {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			r.fail("cannot convert float %s to integer", floatText(f))
		}
		n, _ := big.NewFloat(f).Int(nil)
		v = whole(n)
	}
	n, ok := bigInteger(v)
	if !ok {
		r.defined(v)
		r.fail("%%%c format: a real number is required, not %s", p.kind, typeName(v))
	}
	if p.precision >= 0 {
		digits := len(new(big.Int).Abs(n).String())
		if p.alternate || p.kind == 'o' || p.kind|0x20 == 'x' {
			r.fail("a precision with %%%c is not supported", p.kind)
		}
		if digits < p.precision {
			return p.signed(n.Sign() < 0, strings.Repeat("0", p.precision-digits)+new(big.Int).Abs(n).String())
		}
	}
	return r.integerText(n, p)
}
