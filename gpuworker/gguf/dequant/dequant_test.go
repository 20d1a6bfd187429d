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
		"IQ4_NL looks levels up": {gguf.IQ4NL, fields(halfHalf, at(16, 0, 0xf8, 15, 0x71)),
			map[int]float64{0: 0.5, 16: 56.5, 15: -52, 31: -5}, -63.5},
		// Sub-block 0: scale 3, min 2. Sub-block 1: scale 63, min 0. Sub-block 5: scale 2|2<<4 = 34, min 4|1<<4 = 20.
		"Q4_K packs scales of six bits": {gguf.Q4K, fields(half2, half1, at(12, 0, 3, 4, 2, 1, 0xbf, 5, 0x40, 9, 0x42), at(128, 0, 0x5f, 31, 0x10, 64, 0x70)),
			q4kWant(map[int]float64{0: 2*3*15 - 2, 32: 2 * 63 * 5, 63: 2 * 63, 160: 2*34*7 - 20}), math.NaN()},
		"Q5_K puts the fifth bit of sub-block j at bit j": {gguf.Q5K, fields(half2, half1, at(12, 0, 3, 4, 2, 1, 0xbf, 5, 0x40, 9, 0x42), at(32, 0, 1|1<<5, 31, 2), at(128, 0, 0x5f, 31, 0x10, 64, 0x70)),
			q4kWant(map[int]float64{0: 2*3*31 - 2, 32: 2 * 63 * 5, 63: 2 * 63 * 17, 160: 2*34*23 - 20}), math.NaN()},
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
	require.ErrorIs(t, dequant.Dequantize(gguf.Q2K, make([]byte, 84), make([]float64, 256)), dequant.ErrUnsupported)
	require.ErrorIs(t, dequant.Dequantize(gguf.Q8_0, make([]byte, 33), make([]float64, 32)), dequant.ErrSize)
	require.ErrorIs(t, dequant.Dequantize(gguf.Q8_0, make([]byte, 17), make([]float64, 16)), dequant.ErrSize)
	require.False(t, dequant.Supported(gguf.MXFP4))
	require.True(t, dequant.Supported(gguf.Q6K))
}
