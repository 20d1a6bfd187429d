package jinja

import (
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is how a value is written by % and format.
type spec struct {
	fill      str
	align     byte // '<', '>', '^', '=' or 0
	sign      byte // '+', ' ' or '-'
	alternate bool // with 0x and the like
	width     int
	grouping  string
	precision int // -1: none
	kind      byte
}

// maxPrecision is how many digits of a number may be asked for.
const maxPrecision = 1000

// padTo brings a text to the width; zeros go between the sign and the digits.
func (r *run) padTo(s str, p spec, align byte) str {
	if p.align != 0 {
		align = p.align
	}
	n := p.width - utf8.RuneCountInString(s.text)
	if n <= 0 {
		return s
	}
	if align == '=' {
		digits := 0
		if s.text[0] == '-' || s.text[0] == '+' || s.text[0] == ' ' {
			digits = 1
		}
		if rest := s.text[digits:]; len(rest) > 1 && rest[0] == '0' && strings.ContainsAny(rest[1:2], "xXoObB") {
			digits += 2
		}
		return r.join(s.slice(0, digits), r.repeatText(p.fill, n), s.slice(digits, len(s.text)))
	}
	left := map[byte]int{'<': 0, '>': n, '^': n / 2}[align]
	return r.join(r.repeatText(p.fill, left), s, r.repeatText(p.fill, n-left))
}

func (p spec) signed(negative bool, digits string) string {
	switch {
	case negative:
		return "-" + digits
	case p.sign == '+' || p.sign == ' ':
		return string(p.sign) + digits
	}
	return digits
}

// integerText writes a whole number by d, b, o, x or X.
func (r *run) integerText(n *big.Int, p spec) string {
	base, prefix := 10, ""
	switch p.kind {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0x"
	}
	digits := new(big.Int).Abs(n).Text(base)
	if base == 10 {
		digits = r.digits(new(big.Int).Abs(n))
	}
	if p.grouping != "" {
		every := 3
		if base != 10 {
			every = 4
		}
		digits = grouped(digits, p.grouping, every)
	}
	if p.alternate {
		digits = prefix + digits
	}
	if p.kind == 'X' {
		digits = strings.ToUpper(digits)
	}
	return p.signed(n.Sign() < 0, digits)
}

func grouped(digits, mark string, every int) string {
	for i := len(digits) - every; i > 0; i -= every {
		digits = digits[:i] + mark + digits[i:]
	}
	return digits
}

// floatTextBy writes a number by e, f, g or %.
func (r *run) floatTextBy(f float64, p spec) string {
	if p.alternate {
		r.fail("# in the format of a float is not supported")
	}
	precision := p.precision
	if precision < 0 {
		precision = 6
	}
	kind, end := p.kind|0x20, ""
	if p.kind == '%' {
		f, kind, end = f*100, 'f', "%"
	}
	if kind == 'g' && precision == 0 {
		precision = 1
	}
	digits := strings.TrimPrefix(strconv.FormatFloat(math.Abs(f), kind, precision, 64), "+")
	if math.IsInf(f, 0) || math.IsNaN(f) {
		digits = strings.ToLower(digits)
	}
	if p.grouping != "" {
		whole, rest := digits, ""
		if pos := strings.IndexAny(digits, ".e"); pos >= 0 {
			whole, rest = digits[:pos], digits[pos:]
		}
		digits = grouped(whole, p.grouping, 3) + rest
	}
	if p.kind >= 'A' && p.kind <= 'Z' {
		digits = strings.ToUpper(digits)
	}
	return p.signed(math.Signbit(f) && !math.IsNaN(f), digits) + end
}

// countOf reads a width or precision.
func (r *run) countOf(digits string, most int) int {
	n, err := strconv.Atoi(digits)
	if err != nil || n > most {
		exceedAt(r.line, "a width or precision of %.20s in a format", digits)
	}
	return n
}

var specPattern = regexp.MustCompile(`^(?:((?s:.)?)([<>=^]))?([+\- ]?)(#?)(0?)(\d*)([,_]?)(?:\.(\d+))?([a-zA-Z%]?)$`)

// readSpec reads what follows the colon in format.
func (r *run) readSpec(by str) spec {
	text := by.text
	m := specPattern.FindStringSubmatch(text)
	if m == nil {
		r.fail("the format specifier %q is not supported", text)
	}
	p := spec{fill: str{" ", by.originOf()}, alternate: m[4] != "", grouping: m[7], precision: -1}
	if m[2] != "" {
		p.align = m[2][0]
		if m[1] != "" {
			p.fill.text = m[1]
		}
	}
	if m[3] != "" {
		p.sign = m[3][0]
	}
	if m[5] != "" && m[2] == "" {
		p.fill.text, p.align = "0", '='
	}
	if m[6] != "" {
		p.width = r.countOf(m[6], r.limits.Text)
	}
	if m[8] != "" {
		p.precision = r.countOf(m[8], maxPrecision)
	}
	if m[9] != "" {
		p.kind = m[9][0]
	}
	if p.grouping != "" && p.align == '=' && p.fill.text == "0" {
		r.fail("the format specifier %q is not supported", text)
	}
	return p
}

// formatted is Python's format of a value by a specifier.
func (r *run) formatted(v Value, by str) str {
	text := by.text
	if text == "" {
		return r.text(v)
	}
	p := r.readSpec(by)
	if s, ok := textOf(v); ok {
		if p.kind != 0 && p.kind != 's' || p.sign != 0 || p.alternate || p.grouping != "" || p.align == '=' && p.fill.text != "0" {
			r.fail("the format specifier %q does not fit a string", text)
		}
		if p.align == '=' {
			p.align = '<'
		}
		if p.precision >= 0 {
			s = r.cut(s, nil, p.precision, nil).(str)
		}
		return r.padTo(s, p, '<')
	}
	if !isNumber(v) {
		r.defined(v)
		r.fail("unsupported format string passed to %s.__format__", typeName(v))
	}
	f, isFloat := v.(float64)
	switch p.kind {
	case 0, 'd', 'b', 'o', 'x', 'X':
		if isFloat && p.kind == 0 && p.precision < 0 {
			return r.padTo(own(p.signed(math.Signbit(f), strings.TrimPrefix(floatText(f), "-"))), p, '>')
		}
		if isFloat || p.precision >= 0 {
			break
		}
		n, _ := bigInteger(v)
		return r.padTo(own(r.integerText(n, p)), p, '>')
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return r.padTo(own(r.floatTextBy(r.float(v), p)), p, '>')
	}
	r.fail("the format specifier %q is not supported for %s", text, typeName(v))
	return str{}
}
