package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ValueType is the type of a metadata value, numbered as in files.
type ValueType uint32

// The metadata types of GGUF.
const (
	Uint8 ValueType = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
	numValueTypes
)

var valueNames = [numValueTypes]string{
	"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64",
}

// valueSizes holds bytes of one fixed-size value; zero for strings and arrays.
var valueSizes = [numValueTypes]uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

func (t ValueType) String() string {
	if t < numValueTypes {
		return valueNames[t]
	}
	return fmt.Sprintf("value type %d", uint32(t))
}

// Value is one metadata value, still encoded. The zero Value is invalid; values come from Metadata.
type Value struct {
	Type ValueType
	Elem ValueType // element type of an Array
	Len  uint64    // elements of an Array, bytes of a String
	raw  string    // encoding of the elements (Array), the bytes (String) or the number
}

// bitsOf reads the first bytes of raw as a little-endian number of t's width.
func bitsOf(t ValueType, raw string) uint64 {
	var b [8]byte
	copy(b[:], raw[:valueSizes[t]])
	return binary.LittleEndian.Uint64(b[:])
}

// uintOf returns an integer of any type as uint64; false if it is none or negative.
func uintOf(t ValueType, raw string) (uint64, bool) {
	switch t {
	case Uint8, Uint16, Uint32, Uint64:
		return bitsOf(t, raw), true
	case Int8, Int16, Int32, Int64:
		v, _ := intOf(t, raw)
		return uint64(v), v >= 0
	}
	return 0, false
}

// intOf returns an integer of any type as int64; false if it is none or does not fit.
func intOf(t ValueType, raw string) (int64, bool) {
	switch t {
	case Uint8, Uint16, Uint32, Uint64:
		v := bitsOf(t, raw)
		return int64(v), v <= math.MaxInt64
	case Int8:
		return int64(int8(bitsOf(t, raw))), true
	case Int16:
		return int64(int16(bitsOf(t, raw))), true
	case Int32:
		return int64(int32(bitsOf(t, raw))), true
	case Int64:
		return int64(bitsOf(t, raw)), true
	}
	return 0, false
}

// floatOf returns a float of either width; false if it is none.
func floatOf(t ValueType, raw string) (float64, bool) {
	switch t {
	case Float32:
		return float64(math.Float32frombits(uint32(bitsOf(t, raw)))), true
	case Float64:
		return math.Float64frombits(bitsOf(t, raw)), true
	}
	return 0, false
}

// name describes the value's type for messages.
func (v Value) name() string {
	if v.Type == Array {
		return fmt.Sprintf("array of %d %v", v.Len, v.Elem)
	}
	return v.Type.String()
}

// shown formats an integer as digits, and another value as the name of its type.
func (v Value) shown() string {
	if i, ok := intOf(v.Type, v.raw); ok {
		return fmt.Sprint(i)
	}
	if u, ok := uintOf(v.Type, v.raw); ok {
		return fmt.Sprint(u)
	}
	return "of type " + v.name()
}
