package vectorfile

// MaxDimension is the largest number of elements in a row.
const MaxDimension = 65_536

// ElementType is the type of a matrix's elements.
type ElementType uint8

// The element types. F32 to I8 are those of vectors, U8 to U32 without I8 those of codes.
const (
	F32  ElementType = iota + 1 // IEEE 754 binary32
	F16                         // IEEE 754 binary16
	BF16                        // the upper half of an F32
	I8
	U8
	U16
	U32
)

// Size returns the bytes of one element; 0 for an unknown type.
func (e ElementType) Size() int {
	switch e {
	case F32, U32:
		return 4
	case F16, BF16, U16:
		return 2
	case I8, U8:
		return 1
	}
	return 0
}

func (e ElementType) String() string {
	if e < F32 || e > U32 {
		return "no type"
	}
	return [...]string{"F32", "F16", "BF16", "I8", "U8", "U16", "U32"}[e-F32]
}

// isVector reports whether vectors may have elements of the type, isCode whether codes may.
func (e ElementType) isVector() bool { return e >= F32 && e <= U8 }
func (e ElementType) isCode() bool   { return e >= U8 && e <= U32 }
