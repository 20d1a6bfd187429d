package dequant_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Half-precision constants of the blocks below.
const (
	half1    = 0x3c00 // 1
	halfHalf = 0x3800 // 0.5
	half2    = 0x4000 // 2
	halfNeg3 = 0xc200 // -3
)

// fields joins halves (int), bytes and words into one block.
func fields(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case int:
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case []byte:
			b = append(b, v...)
		}
	}
	return b
}

// at returns n zero bytes with some set: position, value, position, value and so on.
func at(n int, set ...int) []byte {
	b := make([]byte, n)
	for i := 0; i < len(set); i += 2 {
		b[set[i]] = byte(set[i+1])
	}
	return b
}

func TestBlocksGiveTheWeightsComputedByHand(t *testing.T) {
	for name, tc := range map[string]struct {
		typ   gguf.Type
		block []byte
		want  map[int]float64 // some weights, by index
		rest  float64         // all others
	}{
		"F32":  {gguf.F32, fields(uint32(0xc0490fdb)), map[int]float64{0: -3.1415927410125732}, 0},
		"F16":  {gguf.F16, fields(halfNeg3), map[int]float64{0: -3}, 0},
		"BF16": {gguf.BF16, fields(0xbfc0), map[int]float64{0: -1.5}, 0},
		"Q8_0 multiplies signed bytes by the scale": {gguf.Q8_0, fields(halfHalf, at(32, 0, 127, 1, 0x80, 31, 0xff)),
			map[int]float64{0: 63.5, 1: -64, 31: -0.5}, 0},
		"Q4_0 subtracts eight": {gguf.Q4_0, fields(half2, at(16, 0, 0xf0, 15, 0x18)),
			map[int]float64{0: -16, 16: 14, 15: 0, 31: -14}, -16},
		"Q4_1 adds the minimum": {gguf.Q4_1, fields(half2, halfNeg3, at(16, 0, 0xf1, 15, 0x20)),
			map[int]float64{0: -1, 16: 27, 15: -3, 31: 1}, -3},
		"Q5_0 takes fifth bits from the word": {gguf.Q5_0, fields(half2, uint32(1|1<<16|1<<31), at(16, 0, 0xf1, 15, 0x20)),
			map[int]float64{0: 2, 16: 30, 31: 4}, -32},
		"Q5_1 takes fifth bits and a minimum": {gguf.Q5_1, fields(half2, halfNeg3, uint32(1|1<<16|1<<31), at(16, 0, 0xf1, 15, 0x20)),
			map[int]float64{0: 31, 16: 59, 31: 33}, -3},
		"MXFP4 has an exponent and looks values up": {gguf.MXFP4, append([]byte{125}, append(make([]byte, 15), 0x97)...), map[int]float64{15: 1.5, 31: -0.125}, 0},
		// Scales 1.5, 2^-9, 0 for a NaN, and 448. Weights 3 and 11 share byte 3 of the first eight, and 48
		// and 56 the first byte of the last.
		"NVFP4 has a scale of eight bits for 16 weights": {gguf.NVFP4, fields(at(4, 0, 0x3c, 1, 0x01, 2, 0x7f, 3, 0x7e), at(32, 3, 0xf7, 8, 0x21, 16, 0x77, 24, 0x2a)),
			map[int]float64{3: 9, 11: -9, 16: 0.5 / 512, 24: 1.0 / 512, 48: -448, 56: 448}, 0},
		"IQ4_NL looks levels up": {gguf.IQ4NL, fields(halfHalf, at(16, 0, 0xf8, 15, 0x71)),
			map[int]float64{0: 0.5, 16: 56.5, 15: -52, 31: -5}, -63.5},
		// Sub-block 0: scale 3, min 2. Sub-block 1: scale 63, min 0. Sub-block 5: scale 2|2<<4 =
		// 34, min 4|1<<4 = 20.
		"Q4_K packs scales of six bits": {gguf.Q4K, fields(half2, half1, at(12, 0, 3, 4, 2, 1, 0xbf, 5, 0x40, 9, 0x42), at(128, 0, 0x5f, 31, 0x10, 64, 0x70)),
			q4kWant(map[int]float64{0: 2*3*15 - 2, 32: 2 * 63 * 5, 63: 2 * 63, 160: 2*34*7 - 20}), math.NaN()},
		"Q5_K puts the fifth bit of sub-block j at bit j": {gguf.Q5K, fields(half2, half1, at(12, 0, 3, 4, 2, 1, 0xbf, 5, 0x40, 9, 0x42), at(32, 0, 1|1<<5, 31, 2), at(128, 0, 0x5f, 31, 0x10, 64, 0x70)),
			q4kWant(map[int]float64{0: 2*3*31 - 2, 32: 2 * 63 * 5, 63: 2 * 63 * 17, 160: 2*34*23 - 20}), math.NaN()},
		// Scale 3 and min 2 for weights 0-15, scale 15 and min 0 for 16-31, scale 1 and min 15 for
		// 160-175: half 1, quarter 1, its first 16. The byte 0b11_10_01_00 has a weight of each
		// quarter: 0 for weight 0, 1 for 32, 2 for 64, 3 for 96.
		"Q2_K has a scale and a minimum for 16 weights": {gguf.Q2K, fields(at(16, 0, 0x23, 1, 0x0f, 10, 0xf1), at(64, 0, 0b11_10_01_00, 16, 0b11, 32, 0b10_00), half2, half1),
			q2kWant(map[int]float64{0: -2, 16: 2 * 15 * 3, 160: 2*1*2 - 15}), math.NaN()},
		// Scales: 0 has low nibble 5 and pair 3: 53-32 = 21. 9 has high nibble of byte 1 and pair 2 of
		// byte 9: 2 | 1<<4 = 18-32 = -14. 15 has high nibble of byte 7 and pair 3 of byte 11: 32-32 = 0.
		// All others are -32. Third bits: weight 0 and, at bit 4 of byte 16, weight 144.
		"Q3_K orders scales of six bits": {gguf.Q3K, fields(at(32, 0, 1, 16, 1<<4), at(64, 0, 0b01_00_00_10, 32+16, 0b11), at(12, 0, 5, 1, 0x20, 8, 3, 9, 1<<4, 11, 2<<6), half2),
			q3kWant(map[int]float64{0: 2 * 21 * (6 - 4), 96: 2 * -32 * (1 - 4), 144: 2 * -14 * (7 - 4)}), math.NaN()},
		// Scales: sub-block 0 is 7 | 2<<4 = 39-32 = 7; sub-block 5 is 9 | 1<<4 = 25-32 = -7; sub-block 6
		// is 0 | 2<<4 = 32-32 = 0; all others -32. Index 0 is level -127.
		"IQ4_XS scales levels by six bits": {gguf.IQ4XS, fields(half2, 2|1<<10|2<<12, at(4, 0, 7, 2, 0x90), at(128, 0, 0x8f, 5*16+15, 0xf1)),
			iq4xsWant(map[int]float64{0: 2 * 7 * 113, 16: 2 * 7 * 1, 175: 2 * -7 * -104, 191: 2 * -7 * 113}), math.NaN()},
		// In the IQ2 and IQ3 types, entry 0 has the smallest magnitude everywhere: with zeros for signs
		// and scale a weight is d. Sub-block 1 has scale 3: two times 3.5 / 4 = 1.75. Its first eight
		// weights are entry 200: 8 8 8 8 25 8 43 25, with signs at bits 0 and 2; the last eight have the
		// sign at bit 6, and so at bit 7 too.
		"IQ2_XXS has an eighth sign that makes them even": {gguf.IQ2XXS, fields(half2, at(8), at(4, 0, 200), uint32(0b101|0b1000000<<21|3<<28), at(48)),
			lattice(map[int]float64{32: -14, 34: -14, 36: 43.75, 38: 75.25, 39: 43.75, 62: -14, 63: -14}, 32, 64, 14), 2},
		// Weights 40-47 are entry 300, 8 25 25 8 8 25 8 25, with signs at bit 0 and so at bit 7. Their 16
		// have scale 2: two times 2.5 / 4; the next 16 scale 5: two times 5.5 / 4 times 8 = 22.
		"IQ2_XS has a scale for 16 weights": {gguf.IQ2XS, fields(half2, at(10), 300|1<<9, at(52), at(8, 1, 0x52)),
			lattice(lattice(map[int]float64{40: -10, 41: 31.25, 42: 31.25, 45: 31.25, 47: -31.25}, 32, 48, 10), 48, 64, 22), 2},
		// Weights 72-79 are entry 700 = 188 | 2<<8, 8 8 8 43 43 8 25 25, with signs of their own. Their 16
		// have scale 1: two times 1.5 / 4 = 0.75.
		"IQ2_S has ten bits of index": {gguf.IQ2S, fields(half2, at(32, 9, 188), at(32, 9, 0x81), at(8, 2, 2<<2), at(8, 2, 1)),
			lattice(map[int]float64{72: -6, 75: 32.25, 76: 32.25, 78: 18.75, 79: -18.75}, 64, 80, 6), 2},
		// Sub-block 2 has scale 15: two times 15.5 / 2. Weights 68-71 are entry 200: 4 62 4 44. Of weights
		// 64-71 the sign at bit 5 is set, and so at bit 7.
		"IQ3_XXS has an index for four weights": {gguf.IQ3XXS, fields(half2, at(64, 17, 200), at(8), uint32(0b0100000|15<<28), at(20)),
			lattice(map[int]float64{69: -961, 71: -682}, 64, 96, 62), 2},
		// Weights 100-103 are entry 300 = 44 | 1<<8: 3 5 3 7. Sub-block 3 has scale 4: two times 9.
		"IQ3_S has nine bits of index": {gguf.IQ3S, fields(half2, at(64, 25, 44), at(8, 3, 1<<1), at(32, 12, 1<<5), at(4, 1, 0x40)),
			lattice(map[int]float64{100: 54, 101: -90, 102: 54, 103: 126}, 96, 128, 18), 2},
		// Scales 0, 1, 2 at weights 0-47; 5 at 64-79; -7 at 128+96.
		"Q6_K orders quarters of halves": {gguf.Q6K, fields(at(128, 0, 0x4f, 32, 0x21, 64+32+16, 0x30), at(64, 0, 0b11_10_01_00, 32+16, 0b01_00_00_00), at(16, 0, 1, 2, 2, 4, 5, 8+7, 0xf9), half2),
			q6kWant(map[int]float64{0: 2 * (15 - 32), 32: 2 * 2 * (1 + 16 - 32), 64: 2 * 5 * (4 + 32 - 32), 128 + 112: 2 * -7 * (3 + 16 - 32)}), math.NaN()},
	} {
		t.Run(name, func(t *testing.T) {
			require.Len(t, tc.block, int(tc.typ.BlockBytes()))
			got := make([]float64, tc.typ.BlockSize())
			require.NoError(t, dequant.Dequantize(tc.typ, tc.block, got))
			for i, v := range got {
				want, ok := tc.want[i]
				if !ok {
					want = tc.rest
				}
				require.Equal(t, want, v, "weight %d", i)
			}
		})
	}
}

// q4kWant fills in the weights whose nibble is zero: minus the minimum of their sub-block.
func q4kWant(set map[int]float64) map[int]float64 {
	for i := range 256 {
		if _, ok := set[i]; !ok {
			set[i] = 0 - map[int]float64{0: 2, 5: 20}[i/32]
		}
	}
	return set
}

// q6kWant fills in the weights whose six bits are zero: -32 times scale and two.
func q6kWant(set map[int]float64) map[int]float64 {
	for i := range 256 {
		if _, ok := set[i]; !ok {
			set[i] = 2 * map[int]float64{0: 1, 2: 2, 4: 5, 15: -7}[i/16] * -32
		}
	}
	return set
}

// lattice fills in weights begin to end-1 that are not set.
func lattice(set map[int]float64, begin, end int, v float64) map[int]float64 {
	for i := begin; i < end; i++ {
		if _, ok := set[i]; !ok {
			set[i] = v
		}
	}
	return set
}

// q2kWant fills in the weights whose pair is zero: minus the minimum of their 16.
func q2kWant(set map[int]float64) map[int]float64 {
	for i := range 256 {
		if _, ok := set[i]; !ok {
			set[i] = 0 - map[int]float64{0: 2, 10: 15}[i/16]
		}
	}
	return set
}

// q3kWant fills in the weights whose three bits are zero: -4 times scale and two.
func q3kWant(set map[int]float64) map[int]float64 {
	scales := map[int]float64{0: 21, 9: -14, 15: 0}
	for i := range 256 {
		if _, ok := set[i]; !ok {
			scale, other := scales[i/16]
			if !other {
				scale = -32
			}
			set[i] = 2 * scale * -4
		}
	}
	return set
}

// iq4xsWant fills in the weights whose index is zero: -127 times scale and two.
func iq4xsWant(set map[int]float64) map[int]float64 {
	scales := map[int]float64{0: 7, 5: -7, 6: 0}
	for i := range 256 {
		if _, ok := set[i]; !ok {
			scale, other := scales[i/32]
			if !other {
				scale = -32
			}
			set[i] = 2 * scale * -127
		}
	}
	return set
}

func TestHalvesOfEveryClassAreExact(t *testing.T) {
	for h, want := range map[uint16]float64{
		0: 0, 0x8000: math.Copysign(0, -1), 1: math.Ldexp(1, -24), 0x83ff: -math.Ldexp(1023, -24), 0x0400: math.Ldexp(1, -14),
		0x3555: 0.333251953125, 0x7bff: 65504, 0xfbff: -65504, 0x7c00: math.Inf(1), 0xfc00: math.Inf(-1),
	} {
		require.Equal(t, want, dequant.Half(h), "%#x", h)
	}
	require.True(t, math.IsNaN(dequant.Half(0x7e00)))
	require.True(t, math.Signbit(dequant.Half(0x8000)))
}

func TestARealRowInEveryFormatIsCloseToItsHalves(t *testing.T) {
	f, err := gguf.Open("testdata/row.gguf")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	row := func(name string) []float64 {
		tensor, ok := f.Tensor(name)
		require.True(t, ok, name)
		dst := make([]float64, tensor.Elements())
		require.NoError(t, dequant.Dequantize(tensor.Type, f.Bytes(tensor), dst))
		return dst
	}
	want := row("f16")
	for name, bound := range map[string]float64{
		"q8_0": 0.006, "q6_k": 0.02, "q5_k": 0.04, "q5_1": 0.04, "q5_0": 0.05, "q4_k": 0.08, "iq4_nl": 0.08, "q4_1": 0.085, "q4_0": 0.095,
	} {
		var wrong, all float64
		for i, got := range row(name) {
			wrong += (got - want[i]) * (got - want[i])
			all += want[i] * want[i]
		}
		rms := math.Sqrt(wrong / all)
		require.LessOrEqual(t, rms, bound, name)
		require.Greater(t, rms, bound/4, "%s is suspiciously exact", name)
	}
}

func TestWhatCannotBeDequantizedIsRefused(t *testing.T) {
	require.ErrorIs(t, dequant.Dequantize(gguf.IQ1S, make([]byte, 50), make([]float64, 256)), dequant.ErrUnsupported)
	require.ErrorIs(t, dequant.Dequantize(gguf.Q8_0, make([]byte, 33), make([]float64, 32)), dequant.ErrSize)
	require.ErrorIs(t, dequant.Dequantize(gguf.Q8_0, make([]byte, 17), make([]float64, 16)), dequant.ErrSize)
	require.False(t, dequant.Supported(gguf.TQ1_0))
	require.True(t, dequant.Supported(gguf.Q6K))
}
