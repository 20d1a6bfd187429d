package safetensors

import "slices"

// Type is the type of a tensor's elements, little-endian.
type Type uint8

// The types, in the reverse order of the layout of the format's own library.
const (
	Bool Type = iota + 1
	U8
	I8
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	F64
	I64
	U64
)

// typeNames are the names of the types in files.
var typeNames = []string{Bool: "BOOL", U8: "U8", I8: "I8", I16: "I16", U16: "U16", F16: "F16", BF16: "BF16", I32: "I32", U32: "U32", F32: "F32", F64: "F64", I64: "I64", U64: "U64"}

// Size returns the bytes of one element, or 0 for an unknown type.
func (t Type) Size() int64 {
	switch {
	case t < Bool || t > U64:
		return 0
	case t <= I8:
		return 1
	case t <= BF16:
		return 2
	case t <= F32:
		return 4
	}
	return 8
}

// String returns the type's name in files.
func (t Type) String() string {
	if t.Size() == 0 {
		return "no type"
	}
	return typeNames[t]
}

// typeNamed returns the type of a name, or 0.
func typeNamed(name string) Type {
	if name == "" {
		return 0
	}
	return Type(max(0, slices.Index(typeNames, name)))
}
