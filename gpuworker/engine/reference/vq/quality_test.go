package vq

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestAMeanIsTheNearestToTheExactQuotient(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 3))
	for range 20000 {
		n, e := 1+r.Uint64N(1<<r.IntN(33)), r.IntN(260)-98
		sum := int64(r.Uint64()>>(2+r.IntN(60))) * int64(1-2*r.IntN(2))
		quotient := new(big.Rat).SetFrac(big.NewInt(sum), new(big.Int).SetUint64(n))
		power := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), uint(max(e, -e))))
		if e > 0 {
			quotient.Quo(quotient, power)
		} else {
			quotient.Mul(quotient, power)
		}
		want, _ := quotient.Float32()
		if !math.IsInf(float64(want), 0) {
			require.Equal(t, float64(want), mean(engine.VectorF32, sum, n, e), "%d / %d / 2^%d", sum, n, e)
		}
	}
}

// TestLloydIsThatOfFloats compares energies with those of a plain one: sums in float64, means
// rounded to the same type.
func TestLloydIsThatOfFloats(t *testing.T) {
	const n, d, k, rounds = 2000, 6, 12, 15
	for _, of := range []engine.Element{engine.VectorF32, engine.VectorF16, engine.VectorBF16} {
		rows := gaussian(n, d, 21)
		given := make([]float64, k*d)
		for i := range given {
			given[i] = Round(of, rows[i])
		}
		cfg := config(n, d, k)
		cfg.Codebook.Type, cfg.MaxIterations, cfg.StableRounds = of, rounds, rounds+1
		_, got := train(t, cfg, rows, given)
		for i, want := range plainLloyd(of, rows, given, d, rounds) {
			require.InEpsilon(t, want, got[i].Energy, 1e-6, "round %d of type %d", i, of)
		}
	}
}

func plainLloyd(of engine.Element, rows, c []float64, d, rounds int) (energies []float64) {
	c = append([]float64(nil), c...)
	for range rounds + 1 {
		sums, counts, energy := make([]float64, len(c)), make([]float64, len(c)/d), 0.0
		for i := 0; i < len(rows); i += d {
			id, least := 0, math.Inf(1)
			for k := range counts {
				s := 0.0
				for j := range d {
					s += (rows[i+j] - c[k*d+j]) * (rows[i+j] - c[k*d+j])
				}
				if s < least {
					id, least = k, s
				}
			}
			energy += least
			counts[id]++
			for j := range d {
				sums[id*d+j] += rows[i+j]
			}
		}
		energies = append(energies, energy/float64(len(rows)/d))
		for i := range c {
			if n := counts[i/d]; n > 0 {
				c[i] = Round(of, sums[i]/n)
			}
		}
	}
	return energies
}
