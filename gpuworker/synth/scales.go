package synth

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Scales come from a fixed stream of their own, so that all tensors of one row length share them.
var scaleStream = newStream(0x7363616c6573, 0)

// Standard deviations of uniform quants of four, five and six bits, and of IQ4_NL levels.
var (
	std4  = math.Sqrt((16*16 - 1) / 12.0)
	std5  = math.Sqrt((32*32 - 1) / 12.0)
	std6  = math.Sqrt((64*64 - 1) / 12.0)
	stdNL = 67.4 // root mean square of the levels, whose sign is drawn

	rmsE2M1 = math.Sqrt((0.25 + 1 + 2.25 + 4 + 9 + 16 + 36) / 8) // of the floats of MXFP4 and NVFP4
)

// Root mean squares of weights whose scale and quant are drawn from all bits: of Q2_K if dmin is
// q2Shift times d, of Q3_K, and of a scale of six bits.
const (
	rms2K   = 13.87
	rms3K   = 43.34
	rmsSix  = 18.48
	rmsOdd  = 18.47 // of twice a scale of four bits plus one
	q2Shift = 1.5
)

// subScale is the middle of the scales of K-quant sub-blocks, in six or seven bits.
const subScale = 48

// spread returns a factor from 0.75 to 1.25 for variant i, and its sign when signed.
func spread(i int, signed bool) float64 {
	f := 0.75 + float64(i)/(2*(variants-1))
	if signed && i%2 == 1 {
		return -f
	}
	return f
}

// blockScales returns the sets of scales of a quantised type for weights of standard deviation std,
// and their offset in a block. Formats whose quants have a mean other than zero and no minimum draw
// the scale's sign too.
func blockScales(t gguf.Type, std float64) (sets [][]byte, offset int) {
	switch t {
	case gguf.Q4_0:
		return scalesOnly(std/std4, true), 0
	case gguf.Q5_0:
		return scalesOnly(std/std5, true), 0
	case gguf.IQ4NL:
		return scalesOnly(std/stdNL, true), 0
	case gguf.Q4_1:
		return scalesAndMinima(std/std4, 7.5), 0
	case gguf.Q5_1:
		return scalesAndMinima(std/std5, 15.5), 0
	case gguf.Q4K:
		return packedScales(std/std4/subScale, 7.5), 0
	case gguf.Q5K:
		return packedScales(std/std5/subScale, 15.5), 0
	case gguf.Q2K:
		return drawnScales(std/rms2K, q2Shift), 80
	case gguf.Q3K:
		return scalesOnly(std/rms3K, false), 108
	case gguf.IQ4XS:
		return scalesOnly(std/rmsSix/stdNL, false), 0
	case gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S:
		return scalesOnly(std/(rmsOdd/8*rmsOf(t)), false), 0
	case gguf.IQ3XXS:
		return scalesOnly(std/(rmsOdd/4*rmsOf(t)), false), 0
	case gguf.IQ3S:
		return scalesOnly(std/(rmsOdd*rmsOf(t)), false), 0
	case gguf.MXFP4:
		return exponents(std / rmsE2M1), 0
	case gguf.NVFP4:
		return e4m3Scales(std / rmsE2M1), 0
	}
	return signedScales(std / std6 / subScale), 192 // Q6_K, after the quants
}

// scalesOnly returns half d.
func scalesOnly(d float64, signed bool) [][]byte {
	return each(func(i int) []byte { return half(nil, d*spread(i, signed)) })
}

// exponents returns the exponent byte of a power of two. It is one of three neighbours, of which the
// middle and the upper have the shares that make the mean square that of d.
func exponents(d float64) [][]byte {
	const lower = variants / 32 // sets of half the middle
	middle := math.Floor(math.Log2(d))
	square := math.Pow(d/math.Exp2(middle), 2) // 1 to 4
	upper := min((variants*square-lower/4.0-(variants-lower))/3, variants-2*lower)
	return each(func(i int) []byte {
		exponent := middle
		switch {
		case i < lower:
			exponent--
		case i < lower+int(math.Round(upper)):
			exponent++
		}
		return []byte{byte(127 + exponent)}
	})
}

// e4m3Scales returns four scales of eight bits near d. Below 2^-6 they are multiples of 2^-9.
func e4m3Scales(d float64) [][]byte {
	return each(func(i int) []byte {
		b := make([]byte, 4)
		for j := range b {
			v := d * spread(int(scaleStream.word(uint64(1<<21+4*i+j))%variants), false)
			exponent := max(math.Floor(math.Log2(v)), -6)
			steps := math.Round(math.Ldexp(v, 3-int(exponent))) // 16 carries into the exponent
			b[j] = byte(min(8*(exponent+6)+steps, 0x7e))
		}
		return b
	})
}

// scalesAndMinima returns half d and half m, where m moves the middle quant close to zero.
func scalesAndMinima(d, middle float64) [][]byte {
	return each(func(i int) []byte {
		scale := d * spread(i, false)
		return half(half(nil, scale), -scale*(middle+spread(i*7%variants, false)-1))
	})
}

// rmsOf returns the root mean square of the magnitudes of a lattice.
func rmsOf(t gguf.Type) float64 {
	entries, values := dequant.Lattice(t)
	bits, digits := 2, 8
	if len(values) == 8 {
		bits, digits = 3, 4
	}
	sum := 0
	for _, entry := range entries {
		for j := range digits {
			v := values[int(entry)>>(bits*j)&(1<<bits-1)]
			sum += v * v
		}
	}
	return math.Sqrt(float64(sum) / float64(len(entries)*digits))
}

// drawnScales returns half d and half dmin of a type whose scales and minimums are drawn from all
// bits.
func drawnScales(d, shift float64) [][]byte {
	return each(func(i int) []byte { return half(half(nil, d*spread(i, false)), d*spread(i, false)*shift) })
}

// packedScales returns half d, half dmin and eight scales and minima of six bits each, in 12 bytes.
func packedScales(d, middle float64) [][]byte {
	return each(func(i int) []byte {
		b := half(half(nil, d*spread(i, false)), d*spread(i, false)*middle)
		var scale, minimum [8]byte
		for j := range 8 {
			w := scaleStream.word(uint64(8*i + j))
			scale[j] = byte(subScale - 15 + w%31)
			minimum[j] = byte(min(63, uint64(scale[j])-2+w>>32%5))
		}
		packed := make([]byte, 12)
		for j := range 4 {
			packed[j] = scale[j] | scale[j+4]>>4<<6
			packed[j+4] = minimum[j] | minimum[j+4]>>4<<6
			packed[j+8] = scale[j+4]&15 | minimum[j+4]<<4
		}
		return append(b, packed...)
	})
}

// signedScales returns 16 scales of eight bits, of either sign, and half d.
func signedScales(d float64) [][]byte {
	return each(func(i int) []byte {
		b := make([]byte, 16, 18)
		for j := range b {
			w := scaleStream.word(uint64(1<<20 + 16*i + j))
			b[j] = byte(subScale - 24 + w%49)
			if w>>63 == 1 {
				b[j] = -b[j]
			}
		}
		return half(b, d*spread(i, false))
	})
}

func each(set func(i int) []byte) [][]byte {
	sets := make([][]byte, variants)
	for i := range sets {
		sets[i] = set(i)
	}
	return sets
}

func half(b []byte, v float64) []byte { return binary.LittleEndian.AppendUint16(b, halfBits(v)) }

// halfBits returns the half-precision number nearest to v, ties to even. v is finite and within its
// range.
func halfBits(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	_, exponent := math.Frexp(v) // v < 2^exponent
	ulp := max(exponent-11, -24)
	steps := math.RoundToEven(math.Ldexp(v, -ulp)) // up to 2048
	// Numbers of one exponent are 1024 steps; a step count of 2048 carries into the next exponent
	// by itself.
	return sign | uint16(int(steps)+(ulp+24)*1024)
}
