package strictjson

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// start returns the position of the next value.
func (d *Decoder) start() int {
	d.space()
	return d.pos
}

// expect returns an error unless the next value is of a kind.
func (d *Decoder) expect(want Kind) error {
	kind := d.Kind()
	if kind == want {
		return nil
	}
	if kind == "" {
		return d.malformed("%s is expected", want)
	}
	return d.Errorf("is %s: must be %s", kind, want)
}

// enter begins an object or array.
func (d *Decoder) enter(kind Kind) error {
	if err := d.expect(kind); err != nil {
		return err
	}
	if d.depth == MaxDepth {
		return d.Errorf("is nested too deeply: at most %d levels are accepted", MaxDepth)
	}
	d.depth++
	d.pos++
	d.space()
	return nil
}

// object decodes an object: member is called with the path and the position at each value.
func (d *Decoder) object(member func(key string) error) error {
	if err := d.enter(Object); err != nil {
		return err
	}
	for first := true; d.peek() != '}'; first = false {
		if !first {
			if err := d.separator('}'); err != nil {
				return err
			}
		}
		if d.peek() != '"' {
			return d.malformed("the name of a field is expected")
		}
		key, err := d.text()
		if err != nil {
			return err
		}
		d.space()
		if d.peek() != ':' {
			return d.malformed("a colon is expected after a field's name")
		}
		d.pos++
		d.path = append(d.path, segment{name: key, index: -1})
		if err := member(key); err != nil {
			return err
		}
		d.path = d.path[:len(d.path)-1]
		d.space()
	}
	d.pos++
	d.depth--
	return nil
}

// array decodes an array: element is called with the path and the position at each value.
func (d *Decoder) array(element func(i int) error) error {
	if err := d.enter(Array); err != nil {
		return err
	}
	for i := 0; d.peek() != ']'; i++ {
		if i > 0 {
			if err := d.separator(']'); err != nil {
				return err
			}
		}
		d.path = append(d.path, segment{index: i})
		if err := element(i); err != nil {
			return err
		}
		d.path = d.path[:len(d.path)-1]
		d.space()
	}
	d.pos++
	d.depth--
	return nil
}

// separator consumes a comma, after which a value follows.
func (d *Decoder) separator(end byte) error {
	if d.peek() != ',' {
		return d.malformed("a comma or %c is expected", end)
	}
	d.pos++
	d.space()
	if d.peek() == end {
		return d.malformed("a value is expected after a comma")
	}
	return nil
}

// literal consumes true, false or null.
func (d *Decoder) literal(word string) error {
	if !bytes.HasPrefix(d.data[d.pos:], []byte(word)) {
		return d.malformed("%s is expected", word)
	}
	d.pos += len(word)
	return nil
}

// boolean decodes true or false.
func (d *Decoder) boolean(v reflect.Value) error {
	if err := d.expect(Bool); err != nil {
		return err
	}
	is := d.peek() == 't'
	v.SetBool(is)
	if is {
		return d.literal("true")
	}
	return d.literal("false")
}

// text decodes a string. It refuses what is not Unicode, a lone half of a surrogate pair among it,
// because a replacement would change a prompt silently.
func (d *Decoder) text() (string, error) {
	if err := d.expect(String); err != nil {
		return "", err
	}
	d.pos++
	from := d.pos
	for ; d.pos < len(d.data); d.pos++ {
		switch c := d.data[d.pos]; {
		case c == '"':
			s := d.data[from:d.pos]
			if !utf8.Valid(s) {
				return "", d.malformed("a string is not UTF-8")
			}
			d.pos++
			return string(s), nil
		case c == '\\':
			return d.escaped(from)
		case c < ' ':
			return "", d.malformed("a string has a control character: escape it")
		}
	}
	return "", d.malformed("a string has no end")
}

// escaped decodes the rest of a string that began at from and has an escape at the position.
func (d *Decoder) escaped(from int) (string, error) {
	var out strings.Builder
	out.Write(d.data[from:d.pos])
	for d.pos < len(d.data) {
		c := d.data[d.pos]
		switch {
		case c == '"':
			d.pos++
			if s := out.String(); utf8.ValidString(s) {
				return s, nil
			}
			return "", d.malformed("a string is not UTF-8")
		case c < ' ':
			return "", d.malformed("a string has a control character: escape it")
		case c != '\\':
			out.WriteByte(c)
			d.pos++
			continue
		}
		d.pos++
		simple := d.peek()
		d.pos++
		switch simple {
		case '"', '\\', '/':
			out.WriteByte(simple)
		case 'b':
			out.WriteByte('\b')
		case 'f':
			out.WriteByte('\f')
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		case 'u':
			r, err := d.unicode()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
		default:
			return "", d.malformed("a string has an escape that JSON does not have")
		}
	}
	return "", d.malformed("a string has no end")
}

// unicode decodes an escape after \u.
func (d *Decoder) unicode() (rune, error) {
	first, ok := d.unit()
	if !ok {
		return 0, d.malformed("a string has \\u without four hexadecimal digits")
	}
	if !utf16.IsSurrogate(first) {
		return first, nil
	}
	if d.pos+2 <= len(d.data) && d.data[d.pos] == '\\' && d.data[d.pos+1] == 'u' {
		d.pos += 2
		if second, ok := d.unit(); ok {
			if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
				return r, nil
			}
		}
	}
	return 0, d.malformed("a string has half a surrogate pair, which is no character: send both halves or none")
}

// unit decodes four hexadecimal digits.
func (d *Decoder) unit() (rune, bool) {
	if d.pos+4 > len(d.data) {
		return 0, false
	}
	var b [2]byte
	if _, err := hex.Decode(b[:], d.data[d.pos:d.pos+4]); err != nil {
		return 0, false
	}
	d.pos += 4
	return rune(b[0])<<8 | rune(b[1]), true
}

// numeral consumes a number and returns its text.
func (d *Decoder) numeral() (string, error) {
	if err := d.expect(Number); err != nil {
		return "", err
	}
	from := d.pos
	digits := func() bool {
		begin := d.pos
		for c := d.peek(); c >= '0' && c <= '9'; c = d.peek() {
			d.pos++
		}
		return d.pos > begin
	}
	if d.peek() == '-' {
		d.pos++
	}
	if d.peek() == '0' {
		d.pos++
	} else if !digits() {
		return "", d.malformed("a number has no digits")
	}
	if d.peek() == '.' {
		d.pos++
		if !digits() {
			return "", d.malformed("a number has no digits after its point")
		}
	}
	if c := d.peek(); c == 'e' || c == 'E' {
		d.pos++
		if c := d.peek(); c == '+' || c == '-' {
			d.pos++
		}
		if !digits() {
			return "", d.malformed("a number has no digits in its exponent")
		}
	}
	return string(d.data[from:d.pos]), nil
}

// number decodes a number. An integer may be written as 1e3 or 5.0.
func (d *Decoder) number(v reflect.Value) error {
	text, err := d.numeral()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || v.OverflowFloat(f) {
			return d.Errorf("is %s: the number is too large", clip(text))
		}
		v.SetFloat(f)
		return nil
	case reflect.Uint32, reflect.Uint64:
		if n, err := strconv.ParseUint(text, 10, v.Type().Bits()); err == nil {
			v.SetUint(n)
			return nil
		}
		if n, ok := integral(text); ok && n >= 0 && !v.OverflowUint(uint64(n)) {
			v.SetUint(uint64(n))
			return nil
		}
		return d.Errorf("is %s: must be an integer in [0, %d]", clip(text), ^uint64(0)>>(64-v.Type().Bits()))
	default: // signed integers
	}
	n, err := strconv.ParseInt(text, 10, v.Type().Bits())
	if err != nil {
		var ok bool
		if n, ok = integral(text); !ok || v.OverflowInt(n) {
			return d.Errorf("is %s: must be an integer of at most %d bits", clip(text), v.Type().Bits())
		}
	}
	v.SetInt(n)
	return nil
}

// integral returns the value of a number such as 1e3 or 5.0 that is an integer and exact.
func integral(text string) (int64, bool) {
	f, err := strconv.ParseFloat(text, 64)
	const exact = 1 << 53
	if err != nil || f != math.Trunc(f) || math.Abs(f) > exact {
		return 0, false
	}
	return int64(f), true
}
