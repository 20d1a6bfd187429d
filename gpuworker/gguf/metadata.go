package gguf

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Metadata holds the key-value pairs of a file. It is on the Go heap, outlives the File, and is
// safe for concurrent use. Every getter returns ok = false with a nil error if the key is absent.
// If the value has another type, the error wraps ErrValueType and names the key and both types.
type Metadata struct {
	keys   []string
	values map[string]entry
}

type entry struct {
	value   Value
	encoded string // the value as in the file, after its type
}

// Keys returns the keys in file order. The caller must not change the slice.
func (m *Metadata) Keys() []string { return m.keys }

// Value returns the value of a key, undecoded.
func (m *Metadata) Value(key string) (Value, bool) {
	e, ok := m.values[key]
	return e.value, ok
}

// String returns a string, which must be UTF-8.
func (m *Metadata) String(key string) (v string, ok bool, err error) {
	e, ok := m.values[key]
	switch {
	case !ok:
		return "", false, nil
	case e.value.Type != String:
		return "", false, wrongType(key, e.value, "string")
	case !utf8.ValidString(e.value.raw):
		return "", false, fmt.Errorf("metadata %s is not UTF-8: %w", key, ErrValueType)
	}
	return e.value.raw, true, nil
}

// Uint returns an integer of any width that is not negative.
func (m *Metadata) Uint(key string) (uint64, bool, error) {
	return scalar(m, key, "integer that is not negative", uintOf)
}

// Int returns an integer of any width that fits into 64 signed bits.
func (m *Metadata) Int(key string) (int64, bool, error) {
	return scalar(m, key, "integer of 64 signed bits", intOf)
}

// Float returns a floating-point number of either width.
func (m *Metadata) Float(key string) (float64, bool, error) {
	return scalar(m, key, "float32 or float64", floatOf)
}

// Bool returns a bool.
func (m *Metadata) Bool(key string) (v, ok bool, err error) {
	return scalar(m, key, "bool", func(t ValueType, raw string) (bool, bool) {
		return t == Bool && raw[0] != 0, t == Bool
	})
}

// Strings returns an array of strings. They share one copy of the file's header, and may hold any
// bytes, as vocabularies do. Each call decodes the array again, in one pass without copying.
func (m *Metadata) Strings(key string) ([]string, bool, error) {
	e, ok := m.values[key]
	if !ok {
		return nil, false, nil
	}
	v := e.value
	if v.Type != Array || v.Elem != String {
		return nil, false, wrongType(key, v, "array of strings")
	}
	out := make([]string, v.Len)
	rest := v.raw
	for i := range out {
		n := lengthAt(rest)
		out[i], rest = rest[8:8+n], rest[8+n:]
	}
	return out, true, nil
}

// Ints returns an array of integers of any width, each fitting into 64 signed bits.
func (m *Metadata) Ints(key string) ([]int64, bool, error) {
	return array(m, key, "array of integers", intOf)
}

// Bools returns an array of bools.
func (m *Metadata) Bools(key string) ([]bool, bool, error) {
	return array(m, key, "array of bool", func(t ValueType, raw string) (bool, bool) {
		return t == Bool && raw[0] != 0, t == Bool
	})
}

// Floats returns an array of floating-point numbers of either width.
func (m *Metadata) Floats(key string) ([]float64, bool, error) {
	return array(m, key, "array of float32 or float64", floatOf)
}

func scalar[T any](m *Metadata, key, want string, decode func(ValueType, string) (T, bool)) (T, bool, error) {
	var zero T
	e, ok := m.values[key]
	if !ok {
		return zero, false, nil
	}
	v, ok := decode(e.value.Type, e.value.raw)
	if !ok {
		return zero, false, wrongType(key, e.value, want)
	}
	return v, true, nil
}

func array[T any](m *Metadata, key, want string, decode func(ValueType, string) (T, bool)) ([]T, bool, error) {
	e, ok := m.values[key]
	if !ok {
		return nil, false, nil
	}
	v := e.value
	if v.Type != Array || valueSizes[v.Elem] == 0 {
		return nil, false, wrongType(key, v, want)
	}
	out, width := make([]T, v.Len), valueSizes[v.Elem]
	for i := range out {
		if out[i], ok = decode(v.Elem, v.raw[uint64(i)*width:]); !ok {
			return nil, false, wrongType(key, v, want)
		}
	}
	if len(out) == 0 {
		if _, ok := decode(v.Elem, "\x00\x00\x00\x00\x00\x00\x00\x00"); !ok {
			return nil, false, wrongType(key, v, want)
		}
	}
	return out, true, nil
}

func wrongType(key string, v Value, want string) error {
	return fmt.Errorf("metadata %s is %s, want %s: %w", key, v.name(), want, ErrValueType)
}

func lengthAt(s string) uint64 {
	var b [8]byte
	copy(b[:], s[:8])
	return binary.LittleEndian.Uint64(b[:])
}
