package vq

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// candidates is certified assignment with a pass in float32, as the decision proves it.
func candidates(metric engine.Metric, x, codewords []float64) (out []int) {
	d, k := len(x), len(codewords)/len(x)
	scores, longest := make([]float32, k), 0.0
	for c := range k {
		at := codewords[c*d : (c+1)*d]
		square := dot(at, at)
		longest = max(longest, math.Sqrt(square))
		for j := range d {
			scores[c] += float32(float32(x[j]) * float32(at[j]))
		}
		if metric == engine.L2 {
			scores[c] -= float32(square / 2)
		}
	}
	// Each factor is rounded up.
	const more = 1 + 0x1p-10
	length, terms := math.Sqrt(dot(x, x))*more, float64(d+3)*0x1p-24
	longest *= more
	e := (terms/(1-terms)*(length*longest+longest*longest/2) + float64(d)*0x1p-149) * more
	m := float64((d+7)/8+6) * 0x1p-53
	margin := 2*e + m/(1-m)/(1-m/(1-m))*(length+longest)*(length+longest)*more
	best := float32(math.Inf(-1))
	for _, s := range scores {
		best = max(best, s)
	}
	for c, s := range scores {
		if !(float64(s) < float64(best)-margin) || math.IsInf(float64(best), 0) {
			out = append(out, c)
		}
	}
	return out
}

func TestTheIDIsAmongTheCandidates(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	alone, all := 0, 0
	for _, metric := range []engine.Metric{engine.L2, engine.InnerProduct} {
		for _, scale := range []func() float64{
			func() float64 { return r.NormFloat64() },
			func() float64 { return 1e6 + r.NormFloat64() },
			func() float64 { return r.NormFloat64() * math.Pow(10, float64(r.IntN(7)-3)) },
			func() float64 { return float64(r.IntN(100)) * 0x1p-149 },
			func() float64 { return float64(r.IntN(3)) },
		} {
			for _, d := range []int{1, 3, 16, 130} {
				const k = 40
				codewords := make([]float64, k*d)
				for i := range codewords {
					codewords[i] = Round(engine.VectorF32, scale())
				}
				for range 100 {
					x, a, b := make([]float64, d), r.IntN(k), r.IntN(k)
					for j := range x {
						x[j] = scale()
						if d > 3 { // the middle of two codewords
							x[j] = (codewords[a*d+j] + codewords[b*d+j]) / 2
						}
						x[j] = Round(engine.VectorF32, x[j])
					}
					id, _ := nearest(metric, x, codewords)
					got := candidates(metric, x, codewords)
					require.Contains(t, got, id)
					all++
					if len(got) == 1 {
						alone++
					}
				}
			}
		}
	}
	require.Greater(t, alone, all/10, "the margin says something")
}
