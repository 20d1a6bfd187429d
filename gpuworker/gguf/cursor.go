package gguf

import "encoding/binary"

// cursor reads fields of an encoded header. s may be a view of the mapped file: reading retains
// nothing of it.
type cursor struct {
	s   string
	pos uint64 // <= len(s)
}

// next returns the next n bytes, or an error if they are missing.
func (c *cursor) next(n uint64, what string) (string, error) {
	if left := uint64(len(c.s)) - c.pos; n > left {
		return "", malformed(c.pos, "truncated: %s needs %d bytes and %d are left: %s", what, n, left, again)
	}
	field := c.s[c.pos : c.pos+n]
	c.pos += n
	return field, nil
}

func (c *cursor) u32(what string) (uint32, error) {
	field, err := c.next(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32([]byte(field)), nil
}

func (c *cursor) u64(what string) (uint64, error) {
	field, err := c.next(8, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64([]byte(field)), nil
}

// str reads a length and that many bytes.
func (c *cursor) str(what string) (string, error) {
	n, err := c.u64(what)
	if err != nil {
		return "", err
	}
	return c.next(n, what)
}

// maxNesting is how deep arrays of arrays may nest.
const maxNesting = 4

// array skips the elements of an array whose type and count were read at offset at.
func (c *cursor) array(elem ValueType, n uint64, depth int, offset uint64) error {
	switch {
	case elem >= numValueTypes:
		return malformed(offset, "array of unknown %v", elem)
	case elem == String:
		if n > (uint64(len(c.s))-c.pos)/8 {
			return malformed(offset, "array of %d strings is longer than the file, which is cut short or damaged: %s", n, again)
		}
		for range n {
			if _, err := c.str("array string"); err != nil {
				return err
			}
		}
		return nil
	case elem == Array:
		if depth == maxNesting {
			return malformed(offset, "arrays nested deeper than %d", maxNesting)
		}
		if n > (uint64(len(c.s))-c.pos)/12 {
			return malformed(offset, "array of %d arrays is longer than the file, which is cut short or damaged: %s", n, again)
		}
		for range n {
			if _, _, err := c.arrayHead(depth + 1); err != nil {
				return err
			}
		}
		return nil
	}
	width := valueSizes[elem]
	if n > (uint64(len(c.s))-c.pos)/width {
		return malformed(offset, "array of %d %v is longer than the file, which is cut short or damaged: %s", n, elem, again)
	}
	field, err := c.next(n*width, "array")
	if err != nil {
		return err
	}
	if elem == Bool {
		return checkBools(field, c.pos-n)
	}
	return nil
}

// arrayHead reads type and count of an array and skips its elements.
func (c *cursor) arrayHead(depth int) (elem ValueType, n uint64, err error) {
	offset := c.pos
	t, err := c.u32("array element type")
	if err != nil {
		return 0, 0, err
	}
	if n, err = c.u64("array length"); err != nil {
		return 0, 0, err
	}
	return ValueType(t), n, c.array(ValueType(t), n, depth, offset)
}

// value reads a value of the given type; at is the offset of that type, for messages.
func (c *cursor) value(t ValueType, offset uint64) (Value, error) {
	v := Value{Type: t}
	var err error
	switch {
	case t >= numValueTypes:
		return v, malformed(offset, "unknown %v", t)
	case t == Array:
		if v.Elem, v.Len, err = c.arrayHead(1); err != nil {
			return v, err
		}
		v.raw = c.s[offset+16 : c.pos] // after type, element type and length
	case t == String:
		v.raw, err = c.str("string")
		v.Len = uint64(len(v.raw))
	default:
		if v.raw, err = c.next(valueSizes[t], t.String()); err == nil && t == Bool {
			err = checkBools(v.raw, c.pos-1)
		}
	}
	return v, err
}

func checkBools(field string, offset uint64) error {
	for i := range len(field) {
		if field[i] > 1 {
			return malformed(offset+uint64(i), "bool is %d, want 0 or 1", field[i])
		}
	}
	return nil
}
