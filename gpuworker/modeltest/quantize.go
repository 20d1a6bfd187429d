package modeltest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// encoders append one block of weights to b.
var encoders = map[gguf.Type]func(b []byte, w []float64) []byte{
	gguf.F32: func(b []byte, w []float64) []byte {
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(w[0])))
	},
	gguf.F16:    func(b []byte, w []float64) []byte { return binary.LittleEndian.AppendUint16(b, half(w[0])) },
	gguf.BF16:   func(b []byte, w []float64) []byte { return binary.LittleEndian.AppendUint16(b, bfloat(w[0])) },
	gguf.Q8_0:   q8,
	gguf.Q4_0:   func(b []byte, w []float64) []byte { return centred(b, w, 4) },
	gguf.Q5_0:   func(b []byte, w []float64) []byte { return centred(b, w, 5) },
	gguf.Q4_1:   func(b []byte, w []float64) []byte { return ranged(b, w, 4) },
	gguf.Q5_1:   func(b []byte, w []float64) []byte { return ranged(b, w, 5) },
	gguf.IQ4NL:  iq4nl,
	gguf.MXFP4:  mxfp4,
	gguf.NVFP4:  nvfp4,
	gguf.Q6K:    q6k,
	gguf.Q2K:    q2k,
	gguf.Q3K:    q3k,
	gguf.IQ4XS:  iq4xs,
	gguf.IQ2XXS: iq2xxs,
	gguf.IQ2XS:  iq2xs,
	gguf.IQ2S:   iq2s,
	gguf.IQ3XXS: iq3xxs,
	gguf.IQ3S:   iq3s,
}

// Quantize encodes weights as whole blocks of type t. Each weight becomes the nearest value that
// its block can represent.
func Quantize(t gguf.Type, weights []float64) ([]byte, error) {
	encode, ok := encoders[t]
	n := int(t.BlockSize())
	if !ok || len(weights)%n != 0 {
		return nil, fmt.Errorf("quantise %d weights to %v: no encoder, or no whole blocks", len(weights), t)
	}
	b := make([]byte, 0, t.RowBytes(uint64(len(weights))))
	for i := 0; i < len(weights); i += n {
		b = encode(b, weights[i:i+n])
	}
	return b, nil
}

// half rounds to the nearest half-precision number, ties to even.
func half(v float64) uint16 {
	sign := uint16(math.Float64bits(v) >> 63 << 15)
	v = math.Abs(v)
	if v >= 65520 {
		return sign | 0x7c00
	}
	e := -14 // exponent of the subnormal numbers and of the smallest normal ones
	if v >= 0x1p-14 {
		_, e = math.Frexp(v)
		e--
	}
	return sign | (uint16(e+14)<<10 + uint16(math.RoundToEven(math.Ldexp(v, 10-e))))
}

// bfloat rounds to the nearest bfloat16 number, ties to even.
func bfloat(v float64) uint16 {
	u := math.Float32bits(float32(v))
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// appendHalf appends v as a half and returns the value that a reader decodes.
func appendHalf(b []byte, v float64) ([]byte, float64) {
	h := half(v)
	return binary.LittleEndian.AppendUint16(b, h), dequant.Half(h)
}

// extreme returns the weight with the largest magnitude.
func extreme(w []float64) float64 {
	x := 0.0
	for _, v := range w {
		if math.Abs(v) > math.Abs(x) {
			x = v
		}
	}
	return x
}

// level returns the integer nearest to v in [lo, hi].
func level(v, lo, hi float64) int {
	if math.IsNaN(v) { // zero weights in a block of scale zero
		v = 0
	}
	return int(min(max(math.RoundToEven(v), lo), hi))
}

func q8(b []byte, w []float64) []byte {
	b, d := appendHalf(b, math.Abs(extreme(w))/127)
	for _, v := range w {
		b = append(b, byte(level(v/d, -127, 127)))
	}
	return b
}

// centred writes Q4_0 and Q5_0: the extreme weight gets the lowest level, which has no positive
// counterpart.
func centred(b []byte, w []float64, bits int) []byte {
	mid := float64(int(1) << (bits - 1))
	b, d := appendHalf(b, extreme(w)/-mid)
	q := make([]int, len(w))
	for i, v := range w {
		q[i] = level(v/d, -mid, mid-1) + int(mid)
	}
	return appendLevels(b, q, bits)
}

// ranged writes Q4_1 and Q5_1: levels from the smallest to the largest weight.
func ranged(b []byte, w []float64, bits int) []byte {
	lo, hi, top := w[0], w[0], float64(int(1)<<bits-1)
	for _, v := range w {
		lo, hi = min(lo, v), max(hi, v)
	}
	b, d := appendHalf(b, (hi-lo)/top)
	b, m := appendHalf(b, lo)
	q := make([]int, len(w))
	for i, v := range w {
		q[i] = level((v-m)/d, 0, top)
	}
	return appendLevels(b, q, bits)
}

func iq4nl(b []byte, w []float64) []byte {
	b, d := appendHalf(b, extreme(w)/-127)
	return appendLevels(b, nearest(w, d), 4)
}

// mxfp4 gives the block the least power of two by which its extreme weight is below 6, the largest
// float of four bits.
func mxfp4(b []byte, w []float64) []byte {
	_, exponent := math.Frexp(extreme(w) / 6)
	return appendLevels(append(b, byte(127+exponent)), e2m1(w, math.Ldexp(1, exponent)), 4)
}

// nvfp4 gives 16 weights the least scale by which their extreme weight is at most 6.
func nvfp4(b []byte, w []float64) []byte {
	var scales, quants []byte
	for ; len(w) > 0; w = w[16:] {
		scale, code := 0.0, byte(0)
		for largest := math.Abs(extreme(w[:16])) / 6; scale < largest && code < 0x7e; {
			code++
			scale = math.Ldexp(float64(code&7)+min(1, float64(code>>3))*8, max(int(code>>3), 1)-10)
		}
		q := e2m1(w[:16], scale)
		for i := range 8 {
			quants = append(quants, byte(q[i]|q[i+8]<<4))
		}
		scales = append(scales, code)
	}
	return append(append(b, scales...), quants...)
}

// e2m1 returns the index of the float of four bits nearest to each weight with scale d.
func e2m1(w []float64, d float64) []int {
	floats := [8]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	q := make([]int, len(w))
	for i, v := range w {
		for q[i] < 7 && 2*math.Abs(v) > d*(floats[q[i]]+floats[q[i]+1]) {
			q[i]++
		}
		if v < 0 {
			q[i] += 8
		}
	}
	return q
}

// nearest returns the index of the level nearest to each weight with scale d.
func nearest(w []float64, d float64) []int {
	q := make([]int, len(w))
	for i, v := range w {
		if d == 0 {
			break // every level means zero
		}
		for q[i] < 15 && 2*v/d > float64(dequant.Levels[q[i]]+dequant.Levels[q[i]+1]) {
			q[i]++
		}
	}
	return q
}

// appendLevels packs 32 levels of four or five bits.
func appendLevels(b []byte, q []int, bits int) []byte {
	if bits == 5 {
		high := uint32(0)
		for i, v := range q {
			high |= uint32(v>>4) << i
		}
		b = binary.LittleEndian.AppendUint32(b, high)
	}
	for i := range 16 {
		b = append(b, byte(q[i]&15|q[i+16]&15<<4))
	}
	return b
}

// subScales divides the scales of a block by a half so that they become integers of at most top,
// and returns the half as bytes and as the value that a reader decodes.
func subScales(scales []float64, lo, hi, top float64) (encoded []byte, d float64, levels []int) {
	encoded, d = appendHalf(nil, math.Abs(extreme(scales))/top)
	for _, s := range scales {
		levels = append(levels, level(s/d, lo, hi))
	}
	return encoded, d, levels
}

func q2k(b []byte, w []float64) []byte {
	var block [80]byte
	steps, minima := make([]float64, 16), make([]float64, 16)
	for i := range steps {
		lo, hi := 0.0, 0.0
		for _, v := range w[i*16 : i*16+16] {
			lo, hi = min(lo, v), max(hi, v)
		}
		steps[i], minima[i] = (hi-lo)/3, -lo
	}
	encoded, d, scales := subScales(steps, 0, 15, 15)
	encodedMin, dmin, mins := subScales(minima, 0, 15, 15)
	for i := range scales {
		block[i] = byte(scales[i] | mins[i]<<4)
	}
	for i, v := range w {
		q := level((v+dmin*float64(mins[i/16]))/(d*float64(scales[i/16])), 0, 3)
		block[16+i/128*32+i%32] |= byte(q << (i % 128 / 32 * 2))
	}
	return append(append(append(b, block[:]...), encoded...), encodedMin...)
}

func q3k(b []byte, w []float64) []byte {
	var block [108]byte
	high, pairs, packed := block[:32], block[32:96], block[96:]
	steps := make([]float64, 16)
	for i := range steps {
		steps[i] = extreme(w[i*16:i*16+16]) / -4
	}
	encoded, d, scales := subScales(steps, -32, 31, 31)
	for j, s := range scales {
		packed[j%8] |= byte((s + 32) & 15 << (j / 8 * 4))
		packed[8+j%4] |= byte((s + 32) >> 4 << (j / 4 * 2))
	}
	for i, v := range w {
		q := level(v/(d*float64(scales[i/16])), -4, 3) + 4
		pairs[i/128*32+i%32] |= byte(q & 3 << (i % 128 / 32 * 2))
		high[i%32] |= byte(q >> 2 << (i / 32))
	}
	return append(append(b, block[:]...), encoded...)
}

func iq4xs(b []byte, w []float64) []byte {
	steps := make([]float64, 8)
	for i := range steps {
		steps[i] = extreme(w[i*32:i*32+32]) / -127
	}
	encoded, d, scales := subScales(steps, -32, 31, 31)
	var packed [6]byte
	for j, s := range scales {
		packed[j/4] |= byte((s + 32) >> 4 << (j % 4 * 2))
		packed[2+j/2] |= byte((s + 32) & 15 << (j % 2 * 4))
	}
	b = append(append(b, encoded...), packed[:]...)
	for j, s := range scales {
		b = appendLevels(b, nearest(w[j*32:j*32+32], d*float64(s)), 4)
	}
	return b
}

func q6k(b []byte, w []float64) []byte {
	var block [208]byte
	low, high, scales := block[:128], block[128:192], block[192:]
	steps := make([]float64, len(scales))
	for i := range steps {
		steps[i] = extreme(w[i*16:i*16+16]) / -32
	}
	encoded, d := appendHalf(nil, math.Abs(extreme(steps))/127)
	for i, s := range steps {
		scales[i] = byte(level(s/d, -127, 127))
	}
	for i, v := range w {
		part, k, l := i/128, i%128/32, i%32
		q := level(v/(d*float64(int8(scales[i/16]))), -32, 31) + 32
		low[part*64+k%2*32+l] |= byte(q & 15 << (k / 2 * 4))
		high[part*32+l] |= byte(q >> 4 << (2 * k))
	}
	return append(append(b, block[:]...), encoded...)
}
