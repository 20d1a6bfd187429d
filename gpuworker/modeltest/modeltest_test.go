package modeltest

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

func TestVariantsHaveTheSameTensors(t *testing.T) {
	original, err := gguf.Open(Stories(t, gguf.F16))
	require.NoError(t, err)
	defer func() { require.NoError(t, original.Close()) }()
	for _, typ := range Variants() {
		t.Run(typ.String(), func(t *testing.T) {
			f, err := gguf.Open(Stories(t, typ))
			require.NoError(t, err)
			defer func() { require.NoError(t, f.Close()) }()
			require.Len(t, f.Tensors(), len(original.Tensors()))
			for _, want := range original.Tensors() {
				got, ok := f.Tensor(want.Name)
				require.True(t, ok, want.Name)
				require.Equal(t, want.Dims, got.Dims, want.Name)
				if len(want.Dims) == 1 {
					require.Equal(t, original.Bytes(want), f.Bytes(got), want.Name)
					continue
				}
				require.Equal(t, typ, got.Type, want.Name)
				// comparing all tensors would take long
				if want.Name == "blk.0.attn_k.weight" || want.Name == "blk.5.ffn_down.weight" {
					require.Less(t, distance(t, original, want, f, got), coarsest(typ), "%s is far from its original", want.Name)
				}
			}
			tokens, _, err := original.Metadata().Strings("tokenizer.ggml.tokens")
			require.NoError(t, err)
			copied, _, err := f.Metadata().Strings("tokenizer.ggml.tokens")
			require.NoError(t, err)
			require.Equal(t, tokens, copied)
		})
	}
}

// coarsest bounds the relative error of a variant.
func coarsest(typ gguf.Type) float64 {
	switch typ {
	case gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S:
		return 0.6
	case gguf.Q2K:
		return 0.4
	case gguf.Q3K, gguf.IQ3XXS, gguf.IQ3S:
		return 0.25
	case gguf.MXFP4:
		return 0.14
	}
	return 0.12
}

// distance returns the RMS error of the weights relative to their RMS.
func distance(t *testing.T, a *gguf.File, ta gguf.Tensor, b *gguf.File, tb gguf.Tensor) float64 {
	t.Helper()
	x, y := make([]float64, ta.Elements()), make([]float64, tb.Elements())
	require.NoError(t, dequant.Dequantize(ta.Type, a.Bytes(ta), x))
	require.NoError(t, dequant.Dequantize(tb.Type, b.Bytes(tb), y))
	var diff, size float64
	for i := range x {
		diff += (x[i] - y[i]) * (x[i] - y[i])
		size += x[i] * x[i]
	}
	return math.Sqrt(diff / size)
}

func TestQuantizeErrorIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for typ, bound := range map[gguf.Type]float64{ // relative to the largest weight of the block
		gguf.F32: 1e-7, gguf.F16: 1.0 / 2000, gguf.BF16: 1.0 / 250, gguf.Q8_0: 1.01 / 254, gguf.Q4_0: 1.01 / 8, gguf.Q5_0: 1.01 / 16,
		gguf.Q4_1: 1.01 / 15, gguf.Q5_1: 1.01 / 31, gguf.IQ4NL: 14.0 / 127, gguf.Q6K: 1.1 / 32,
		gguf.Q2K: 0.5, gguf.Q3K: 0.3, gguf.IQ4XS: 0.16,
		gguf.IQ2XXS: 1, gguf.IQ2XS: 1, gguf.IQ2S: 1, gguf.IQ3XXS: 1, gguf.IQ3S: 0.6, gguf.MXFP4: 1.01 / 3, gguf.NVFP4: 1.15 / 6,
	} {
		t.Run(typ.String(), func(t *testing.T) {
			n := int(typ.BlockSize())
			weights := make([]float64, 64*n)
			for i := range weights {
				weights[i] = random.NormFloat64() * float64(i/n%5)
			}
			raw, err := Quantize(typ, weights)
			require.NoError(t, err)
			got := make([]float64, len(weights))
			require.NoError(t, dequant.Dequantize(typ, raw, got))
			for i := range weights {
				top := math.Abs(extreme(weights[i/n*n : i/n*n+n]))
				require.LessOrEqual(t, math.Abs(got[i]-weights[i]), bound*top, "weight %d: %v became %v", i, weights[i], got[i])
			}
		})
	}
}

func TestHalfRoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		if v := dequant.Half(uint16(h)); !math.IsNaN(v) {
			require.Equal(t, uint16(h), half(v), "%v", v)
		}
	}
	require.Equal(t, uint16(0x7c00), half(65520))
	require.Equal(t, uint16(0x7bff), half(65519))
}

func TestQuantizeRefusesUnknownTypes(t *testing.T) {
	_, err := Quantize(gguf.Q4K, make([]float64, 256))
	require.ErrorContains(t, err, "Q4_K")
	_, err = Quantize(gguf.Q4_0, make([]float64, 33))
	require.ErrorContains(t, err, "33 weights")
}

func TestGoldenTextsAreComplete(t *testing.T) {
	golden := ReadGolden(t)
	require.Len(t, golden, 3)
	for name, g := range golden {
		require.NotEmpty(t, g.Text, name)
		require.Len(t, g.NextLogprob, len(g.TokenIDs)-1, name)
		require.Len(t, g.Top8, len(g.TokenIDs), name)
	}
}

func TestVariantsStaySmall(t *testing.T) {
	total := int64(0)
	for typ := range shipped {
		if typ == gguf.Q8_0 {
			continue // the shipped model
		}
		info, err := os.Stat(Stories(t, typ))
		require.NoError(t, err)
		total += info.Size()
	}
	require.Less(t, total, int64(20_000_000))
}
