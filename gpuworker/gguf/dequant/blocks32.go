package dequant

import (
	"encoding/binary"
	"math"
)

// Formats with blocks of 32 weights. Nibble formats keep weight j in the low and weight j+16 in the
// high half of byte j; formats of five bits keep the fifth bit of weight j at bit j of a 32-bit
// word.

// nibble returns the four bits of weight j.
func nibble(q []byte, j int) int {
	if j < 16 {
		return int(q[j] & 15)
	}
	return int(q[j-16] >> 4)
}

// five returns the five bits of weight j, whose fifth bits are in high.
func five(q []byte, high uint32, j int) int { return nibble(q, j) | int(high>>j&1)<<4 }

func q8_0(b []byte, dst []float64) {
	d := halfAt(b)
	for j := range dst {
		dst[j] = d * float64(int8(b[2+j]))
	}
}

func q4_0(b []byte, dst []float64) {
	d := halfAt(b)
	for j := range dst {
		dst[j] = d * float64(nibble(b[2:], j)-8)
	}
}

func q4_1(b []byte, dst []float64) {
	d, m := halfAt(b), halfAt(b[2:])
	for j := range dst {
		dst[j] = d*float64(nibble(b[4:], j)) + m
	}
}

func q5_0(b []byte, dst []float64) {
	d, high := halfAt(b), binary.LittleEndian.Uint32(b[2:])
	for j := range dst {
		dst[j] = d * float64(five(b[6:], high, j)-16)
	}
}

func q5_1(b []byte, dst []float64) {
	d, m, high := halfAt(b), halfAt(b[2:]), binary.LittleEndian.Uint32(b[4:])
	for j := range dst {
		dst[j] = d*float64(five(b[8:], high, j)) + m
	}
}

// Levels of IQ4_NL and IQ4_XS: a nibble is an index into them.
var Levels = [16]int{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func iq4nl(b []byte, dst []float64) {
	d := halfAt(b)
	for j := range dst {
		dst[j] = d * float64(Levels[nibble(b[2:], j)])
	}
}

// Values of MXFP4 and NVFP4, which are those of a float of four bits, E2M1: a nibble is an index into
// them.
var mxfp4Values = [16]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// mxfp4: the exponent of a power of two, biased by 127; indices as in IQ4_NL.
func mxfp4(b []byte, dst []float64) {
	scale := math.Ldexp(1, int(b[0])-127)
	for j := range dst {
		dst[j] = scale * mxfp4Values[nibble(b[1:], j)]
	}
}

// nvfp4: a block of 64 weights has four scales of 16 weights each, then their nibbles: weight j of 16
// in the low half of byte j, weight j+8 in the high one.
func nvfp4(b []byte, dst []float64) {
	for j := range dst {
		part, within := j/16, j%16
		both := b[4+part*8+within%8]
		dst[j] = e4m3(b[part]) * mxfp4Values[both>>(within/8*4)&15]
	}
}

// e4m3 returns the value of a float of eight bits with four of exponent. As ggml, it ignores the sign
// bit, and 0x7f is 0 instead of NaN.
func e4m3(b byte) float64 {
	exponent, mantissa := int(b>>3&15), float64(b&7)
	switch {
	case b == 0x7f:
		return 0
	case exponent == 0:
		return math.Ldexp(mantissa, -9)
	}
	return math.Ldexp(8+mantissa, exponent-10)
}
