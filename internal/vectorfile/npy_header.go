package vectorfile

import (
	"fmt"
	"math"
	"strings"
)

// parseNpyHeader reads the dictionary {'descr': TYPE, 'fortran_order': BOOL, 'shape': LENGTHS} as
// Python writes it, and no other Python. start is the offset of header in the file.
func parseNpyHeader(header []byte, start int64) (array, error) {
	c := &literal{s: string(header), start: start}
	a := array{data: start + int64(len(header))}
	seen := map[string]bool{}
	err := c.items('{', '}', func() error {
		offset := c.offset()
		key, err := c.quoted()
		if err != nil {
			return err
		}
		if seen[key] {
			return malformed(offset, "the header has %q twice: save the array with numpy.save", key)
		}
		seen[key] = true
		if err := c.expect(':'); err != nil {
			return err
		}
		switch value := c.offset(); key {
		case "descr":
			a.offset.descr = value
			return c.descr(&a)
		case "fortran_order":
			a.offset.fortran = value
			a.fortran, err = c.boolean()
			return err
		case "shape":
			a.offset.shape = value
			a.shape, err = c.shape()
			return err
		}
		return malformed(offset, "the header has the unknown key %q: save the array with numpy.save", key)
	})
	if err != nil {
		return array{}, err
	}
	if c.space(); c.pos < len(c.s) {
		return array{}, malformed(c.offset(), "the header continues after its dictionary: save the array with numpy.save")
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return array{}, malformed(start, "the header has no %q: save the array with numpy.save", key)
		}
	}
	if n := len(a.shape); n != 1 && n != 2 {
		return array{}, unsupported(a.offset.shape, "the array has %d dimensions, and 1 or 2 are read: save x.reshape(rows, -1)", n)
	}
	return a, nil
}

// literal reads Python literals.
type literal struct {
	s     string
	pos   int   // <= len(s)
	start int64 // where s begins in the file
}

func (c *literal) offset() int64 { c.space(); return c.start + int64(c.pos) }

func (c *literal) space() {
	c.pos = len(c.s) - len(strings.TrimLeft(c.s[c.pos:], " \t\r\n"))
}

// next returns the next byte after spaces without consuming it; 0 at the end.
func (c *literal) next() byte {
	if c.space(); c.pos == len(c.s) {
		return 0
	}
	return c.s[c.pos]
}

func (c *literal) expect(b byte) error {
	if c.next() != b {
		return c.odd(fmt.Sprintf("%q", b))
	}
	c.pos++
	return nil
}

func (c *literal) odd(want string) error {
	return malformed(c.offset(), "the header is not the dictionary that numpy writes, %s is missing here: save the array with numpy.save", want)
}

// items calls item for each element between two brackets. A comma may follow the last one.
func (c *literal) items(left, right byte, item func() error) error {
	if err := c.expect(left); err != nil {
		return err
	}
	for c.next() != right {
		if err := item(); err != nil {
			return err
		}
		if c.next() != ',' {
			break
		}
		c.pos++
	}
	return c.expect(right)
}

// quoted reads a string without escapes: names of types and keys need none.
func (c *literal) quoted() (string, error) {
	quote := c.next()
	if quote != '\'' && quote != '"' {
		return "", c.odd("a string")
	}
	text, _, closed := strings.Cut(c.s[c.pos+1:], string(quote))
	if !closed || strings.ContainsAny(text, "\\\n") {
		return "", c.odd("a plain string")
	}
	c.pos += len(text) + 2
	return text, nil
}

func (c *literal) boolean() (bool, error) {
	c.space()
	for text, value := range map[string]bool{"True": true, "False": false} {
		if strings.HasPrefix(c.s[c.pos:], text) {
			c.pos += len(text)
			return value, nil
		}
	}
	return false, c.odd("True or False")
}

func (c *literal) descr(a *array) (err error) {
	offset := c.offset()
	if b := c.next(); b == '[' || b == '(' {
		return unsupported(offset, "the array holds records: save one field of plain numbers, numpy.ascontiguousarray(x['name'])")
	}
	if a.descr, err = c.quoted(); err != nil {
		return err
	}
	if a.element, err = npyElement(a.descr); err != nil {
		return unsupported(offset, "%v", err)
	}
	return nil
}

// shape reads a tuple of lengths. Python 2 marks long ones with an L.
func (c *literal) shape() (shape []int64, err error) {
	commas := 0
	offset := c.offset()
	err = c.items('(', ')', func() error {
		if c.next() == '-' {
			return malformed(c.offset(), "the shape has a negative length: save the array with numpy.save")
		}
		n, err := c.length()
		shape = append(shape, n)
		if c.next() == ',' {
			commas++
		}
		return err
	})
	if err == nil && len(shape) == 1 && commas == 0 {
		err = malformed(offset, "the shape is a number and no tuple: save the array with numpy.save")
	}
	return shape, err
}

func (c *literal) length() (int64, error) {
	var n int64
	begin := c.pos
	for ; c.pos < len(c.s) && c.s[c.pos] >= '0' && c.s[c.pos] <= '9'; c.pos++ {
		digit := int64(c.s[c.pos] - '0')
		if n > (math.MaxInt64-digit)/10 {
			return 0, malformed(c.start+int64(begin), "the shape has a length beyond 2^63: save the array with numpy.save")
		}
		n = n*10 + digit
	}
	digits := c.s[begin:c.pos]
	if digits == "" || len(digits) > 1 && digits[0] == '0' {
		c.pos = begin
		return 0, c.odd("a length")
	}
	if strings.HasPrefix(c.s[c.pos:], "L") {
		c.pos++
	}
	return n, nil
}
