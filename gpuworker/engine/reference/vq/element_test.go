package vq

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestEveryHalfSurvivesDecodingAndEncoding(t *testing.T) {
	for _, of := range []engine.Element{engine.VectorF16, engine.VectorBF16} {
		for bits := range 1 << 16 {
			b := []byte{byte(bits), byte(bits >> 8)}
			v := Decode(of, b)
			if math.IsNaN(v[0]) || math.IsInf(v[0], 0) {
				require.Error(t, Finite(v, 1, 7))
				continue
			}
			require.Equal(t, math.Float64bits(v[0]), math.Float64bits(Round(of, v[0])))
			require.Equal(t, b, Encode(of, v))
		}
	}
}

func TestRoundingIsThatOfTheFormat(t *testing.T) {
	for name, tc := range map[string]struct {
		to       engine.Element
		in, want float64
	}{
		"a tie goes to the even neighbour":      {engine.VectorF16, 1 + 0x1p-11, 1},
		"and up where that one is even":         {engine.VectorF16, 1 + 3*0x1p-11, 1 + 0x1p-9},
		"above a tie it goes up":                {engine.VectorF16, 1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-10},
		"subnormals have a fixed step":          {engine.VectorF16, 3.4 * 0x1p-24, 3 * 0x1p-24},
		"half the least one is zero":            {engine.VectorF16, 0x1p-25, 0},
		"beyond the largest it is the largest":  {engine.VectorF16, -1e9, -65504},
		"bf16 has eight bits":                   {engine.VectorBF16, 257, 256},
		"bf16 has subnormals":                   {engine.VectorBF16, 0x1.8p-133, 0x1p-132},
		"the largest f32 saturates in bf16":     {engine.VectorBF16, math.MaxFloat32, 0x1.fep127},
		"what rounds up to a power of two does": {engine.VectorF16, 2047.9, 2048},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, Round(tc.to, tc.in)) })
	}
	require.True(t, math.Signbit(Round(engine.VectorF16, -0x1p-30)), "the sign of a zero stays")
	require.True(t, Holds(engine.VectorF16, 65519))
	require.False(t, Holds(engine.VectorF16, 65520))
	require.False(t, Holds(engine.VectorBF16, math.MaxFloat32))
}

func TestRoundingToF32IsTheProcessors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		v := math.Float64frombits(r.Uint64())
		if math.Abs(v) <= math.MaxFloat32 {
			require.Equal(t, float64(float32(v)), Round(engine.VectorF32, v))
		}
	}
}

func TestAMeanIsRoundedOnce(t *testing.T) {
	require.Equal(t, 1.0/3, mean64(1, 3, 0))
	for name, tc := range map[string]struct {
		sum  int64
		n    uint64
		want float64
	}{
		// 2049 + 1/3 * 2^-20: a rounding to 11 bits would see a tie between 2048 and 2050 if the
		// rest were lost.
		"a rest above a tie counts": {3*2049<<20 + 1, 3, 2050},
		"a tie is one":              {3 * 2049 << 20, 3, 2048},
		"below a tie, too":          {-(3*2051<<20 - 1), 3, -2050},
		"nothing is nothing":        {0, 3, 0},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, mean(engine.VectorF16, tc.sum, tc.n, 20)) })
	}
	require.Equal(t, Round(engine.VectorF32, 0x1p62/3), mean(engine.VectorF32, 1<<62, 3, 0))
	require.Equal(t, 0x1p-210, mean(engine.VectorF32, 1, 1, 210)+0x1p-210, "far below the least value")
}

// mean64 is a mean of F32 as the quotient of two small integers, which float64 holds nearly.
func mean64(sum int64, n uint64, e int) float64 {
	if mean(engine.VectorF32, sum, n, e) != Round(engine.VectorF32, float64(sum)/float64(n)) {
		return math.NaN()
	}
	return float64(sum) / float64(n)
}

func TestSumsOfTheLargestValuesDoNotOverflow(t *testing.T) {
	for _, largest := range []float64{math.MaxFloat32, 1, 255, 0x1p-149, 65504} {
		for _, n := range []uint64{1, 2, 3, 1 << 20, 1<<20 + 1, engine.MaxTrainingRows} {
			q := quantised(largest, exponent(largest, n))
			require.Positive(t, q)
			require.LessOrEqual(t, uint64(q), uint64(1<<62)/n, "%g times %d", largest, n)
		}
	}
	require.Zero(t, exponent(0, 5))
}
