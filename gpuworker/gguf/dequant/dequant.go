package dequant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// ErrUnsupported means that the package has no exact reference for the tensor type.
var ErrUnsupported = errors.New("tensor type has no reference")

// ErrSize means that the bytes are not the whole blocks that dst has room for.
var ErrSize = errors.New("bytes and weights do not match")

// unpack writes the weights of one block to dst, whose length is the block's.
type unpack func(block []byte, dst []float64)

var formats = map[gguf.Type]unpack{
	gguf.F32: f32, gguf.F16: f16, gguf.BF16: bf16,
	gguf.Q8_0: q8_0, gguf.Q4_0: q4_0, gguf.Q4_1: q4_1, gguf.Q5_0: q5_0, gguf.Q5_1: q5_1, gguf.IQ4NL: iq4nl, gguf.MXFP4: mxfp4, gguf.NVFP4: nvfp4,
	gguf.Q2K: q2k, gguf.Q3K: q3k, gguf.Q4K: q4k, gguf.Q5K: q5k, gguf.Q6K: q6k, gguf.IQ4XS: iq4xs,
	gguf.IQ2XXS: iq2xxs, gguf.IQ2XS: iq2xs, gguf.IQ2S: iq2s, gguf.IQ3XXS: iq3xxs, gguf.IQ3S: iq3s,
}

// Supported reports whether Dequantize accepts the type.
func Supported(t gguf.Type) bool { return formats[t] != nil }

// Dequantize writes the weights in raw to dst, in file order. raw must be whole blocks with exactly
// len(dst) weights; otherwise nothing is written.
func Dequantize(t gguf.Type, raw []byte, dst []float64) error {
	f := formats[t]
	if f == nil {
		return fmt.Errorf("dequantize %v: %w", t, ErrUnsupported)
	}
	weights, size := int(t.BlockSize()), int(t.BlockBytes())
	if len(dst)%weights != 0 || len(raw) != len(dst)/weights*size {
		return fmt.Errorf("dequantize %v: %d bytes for %d weights: %w", t, len(raw), len(dst), ErrSize)
	}
	for i, o := 0, 0; i < len(raw); i, o = i+size, o+weights {
		f(raw[i:i+size], dst[o:o+weights])
	}
	return nil
}

// Half returns the value of an IEEE half-precision number.
func Half(h uint16) float64 {
	sign := 1.0
	if h&0x8000 != 0 {
		sign = -1
	}
	exponent, mantissa := int(h>>10&31), float64(h&0x3ff)
	switch {
	case exponent == 0:
		return sign * math.Ldexp(mantissa, -24)
	case exponent < 31:
		return sign * math.Ldexp(1024+mantissa, exponent-25)
	case mantissa == 0:
		return math.Inf(int(sign))
	}
	return math.NaN()
}

func halfAt(b []byte) float64 { return Half(binary.LittleEndian.Uint16(b)) }

func f32(b []byte, dst []float64) {
	dst[0] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
}

func f16(b []byte, dst []float64) { dst[0] = halfAt(b) }

func bf16(b []byte, dst []float64) {
	dst[0] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
}
