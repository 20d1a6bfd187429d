package gguf

import (
	"fmt"
	"math"
	"math/bits"
)

// Type is the storage type of a tensor, numbered as ggml numbers it in files.
type Type uint32

// The tensor types of ggml. Missing numbers were withdrawn by ggml and are refused.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q8_1   Type = 9
	Q2K    Type = 10
	Q3K    Type = 11
	Q4K    Type = 12
	Q5K    Type = 13
	Q6K    Type = 14
	Q8K    Type = 15
	IQ2XXS Type = 16
	IQ2XS  Type = 17
	IQ3XXS Type = 18
	IQ1S   Type = 19
	IQ4NL  Type = 20
	IQ3S   Type = 21
	IQ2S   Type = 22
	IQ4XS  Type = 23
	I8     Type = 24
	I16    Type = 25
	I32    Type = 26
	I64    Type = 27
	F64    Type = 28
	IQ1M   Type = 29
	BF16   Type = 30
	TQ1_0  Type = 34
	TQ2_0  Type = 35
	MXFP4  Type = 39
	NVFP4  Type = 40
	Q1_0   Type = 41
	Q2_0   Type = 42
)

type layout struct {
	name  string
	block uint64 // elements of one block
	bytes uint64 // bytes of one block
}

var layouts = map[Type]layout{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, F64: {"F64", 1, 8},
	I8: {"I8", 1, 1}, I16: {"I16", 1, 2}, I32: {"I32", 1, 4}, I64: {"I64", 1, 8},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36}, IQ4NL: {"IQ4_NL", 32, 18},
	Q2K: {"Q2_K", 256, 84}, Q3K: {"Q3_K", 256, 110}, Q4K: {"Q4_K", 256, 144}, Q5K: {"Q5_K", 256, 176},
	Q6K: {"Q6_K", 256, 210}, Q8K: {"Q8_K", 256, 292},
	IQ1S: {"IQ1_S", 256, 50}, IQ1M: {"IQ1_M", 256, 56}, IQ2XXS: {"IQ2_XXS", 256, 66}, IQ2XS: {"IQ2_XS", 256, 74},
	IQ2S: {"IQ2_S", 256, 82}, IQ3XXS: {"IQ3_XXS", 256, 98}, IQ3S: {"IQ3_S", 256, 110}, IQ4XS: {"IQ4_XS", 256, 136},
	TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66},
	MXFP4: {"MXFP4", 32, 17}, NVFP4: {"NVFP4", 64, 36},
	Q1_0: {"Q1_0", 128, 18}, Q2_0: {"Q2_0", 64, 18},
}

// Known reports whether the size of the type is known. If not, the methods below return zero.
func (t Type) Known() bool { return layouts[t].block != 0 }

// String returns ggml's name of the type, such as Q4_K.
func (t Type) String() string {
	if l, ok := layouts[t]; ok {
		return l.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// ParseType returns the type with the given name, in ggml's spelling.
func ParseType(name string) (Type, bool) {
	for t, l := range layouts {
		if l.name == name {
			return t, true
		}
	}
	return 0, false
}

// BlockSize returns the elements of one block.
func (t Type) BlockSize() uint64 { return layouts[t].block }

// BlockBytes returns the bytes of one block.
func (t Type) BlockBytes() uint64 { return layouts[t].bytes }

// RowBytes returns the bytes of n consecutive elements; n must be a multiple of BlockSize.
func (t Type) RowBytes(n uint64) uint64 {
	l, ok := layouts[t]
	if !ok {
		return 0
	}
	return n / l.block * l.bytes
}

// removed names the types that ggml withdrew without reusing their numbers.
var removed = map[Type]string{
	4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}

// unknownType explains why the type of a tensor is refused, and what to do.
func unknownType(t Type) string {
	name, was := removed[t]
	if !was {
		return fmt.Sprintf("unknown type %d", uint32(t))
	}
	instead := "Q4_0"
	if t > 35 {
		instead = "IQ4_NL"
	}
	return fmt.Sprintf("type %d (%s), which ggml removed: get the model in %s or another type, or quantize it again", uint32(t), name, instead)
}

// maxDims is ggml's limit of dimensions.
const maxDims = 4

// tensorSize returns the bytes of a tensor, or the reason why such a tensor is impossible.
func tensorSize(t Type, dims []uint64) (uint64, error) {
	l, ok := layouts[t]
	switch {
	case !ok:
		return 0, fmt.Errorf("unknown tensor type %d", uint32(t))
	case len(dims) == 0 || len(dims) > maxDims:
		return 0, fmt.Errorf("%d dimensions, want 1 to %d", len(dims), maxDims)
	}
	elements := uint64(1)
	for i, d := range dims {
		if d == 0 {
			return 0, fmt.Errorf("dimension %d is zero", i)
		}
		hi, lo := bits.Mul64(elements, d)
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("dimensions %v overflow", dims)
		}
		elements = lo
	}
	if dims[0]%l.block != 0 {
		return 0, fmt.Errorf("rows of %d elements are not whole %s blocks of %d", dims[0], l.name, l.block)
	}
	hi, size := bits.Mul64(elements/l.block, l.bytes)
	if hi != 0 || size > math.MaxInt64 {
		return 0, fmt.Errorf("dimensions %v overflow", dims)
	}
	return size, nil
}
