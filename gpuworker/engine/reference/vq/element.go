package vq

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// format is a binary floating-point format.
type format struct {
	bits     int     // of the significand, the hidden one included
	smallest int     // exponent of the least subnormal
	largest  float64 // finite
}

var formats = map[engine.Element]format{
	engine.VectorF32:  {24, -149, math.MaxFloat32},
	engine.VectorF16:  {11, -24, 65504},
	engine.VectorBF16: {8, -133, 0x1.fep127},
}

// unbounded rounds v once, to the nearest value of the format with ties to even, as if exponents
// had no upper bound.
func (f format) unbounded(v float64) float64 {
	_, exponent := math.Frexp(v) // |v| in [2^(exponent-1), 2^exponent)
	step := max(exponent-f.bits, f.smallest)
	return math.Ldexp(math.RoundToEven(math.Ldexp(v, -step)), step)
}

// Round returns the nearest value of the type, with ties to even. Beyond the largest finite value
// it returns that value.
func Round(to engine.Element, v float64) float64 {
	f := formats[to]
	return min(max(f.unbounded(v), -f.largest), f.largest)
}

// Holds reports whether v rounds to a finite value of the type.
func Holds(to engine.Element, v float64) bool {
	f := formats[to]
	return math.Abs(f.unbounded(v)) <= f.largest
}

// Decode returns the exact values of elements.
func Decode(from engine.Element, b []byte) []float64 {
	size := from.Size()
	out := make([]float64, len(b)/size)
	for i := range out {
		e := b[i*size:]
		switch from {
		case engine.VectorF32:
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(e)))
		case engine.VectorF16:
			out[i] = half(binary.LittleEndian.Uint16(e))
		case engine.VectorBF16:
			out[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(e)) << 16))
		case engine.VectorU8:
			out[i] = float64(e[0])
		default:
			out[i] = float64(int8(e[0]))
		}
	}
	return out
}

// half returns the value of an IEEE binary16.
func half(bits uint16) float64 {
	sign, exponent, fraction := 1-2*float64(bits>>15), int(bits>>10&31), float64(bits&1023)
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 31:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	default:
		return sign * math.Ldexp(1024+fraction, exponent-25)
	}
}

// Encode returns the bytes of values that the type holds exactly.
func Encode(to engine.Element, values []float64) []byte {
	out := make([]byte, 0, len(values)*to.Size())
	for _, v := range values {
		switch to {
		case engine.VectorF32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		case engine.VectorF16:
			out = binary.LittleEndian.AppendUint16(out, halfBits(v))
		case engine.VectorBF16:
			out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(float32(v))>>16))
		default:
			out = append(out, byte(int(v)))
		}
	}
	return out
}

// halfBits returns the binary16 of a value that it holds exactly.
func halfBits(v float64) uint16 {
	sign := uint16(math.Float64bits(v)>>63) << 15
	v = math.Abs(v)
	if v < 0x1p-14 {
		return sign | uint16(math.Ldexp(v, 24))
	}
	fraction, exponent := math.Frexp(v)
	return sign | uint16(exponent+14)<<10 | uint16(math.Ldexp(fraction, 11))&1023
}

// Finite returns ErrInvalid with the number of the first row that has a NaN or an infinity. first
// is the number of row 0.
func Finite(values []float64, dimension int, first uint64) error {
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("row %d has %v at element %d: rows must be finite: %w", first+uint64(i/dimension), v, i%dimension, engine.ErrInvalid)
		}
	}
	return nil
}
