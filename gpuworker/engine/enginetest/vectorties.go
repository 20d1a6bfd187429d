package enginetest

import (
	"bytes"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// testNearTies encodes rows whose nearest codewords are equal in float32, so that only float64 sums
// in the documented order, and the lowest id if those are equal, give the right id.
func testNearTies(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	for name, make := range map[string]func(r *rand.Rand, d, k int) (codewords, rows []float64){
		"the middle of two codewords": middles,
		"one vector in many orders":   orders,
		"neighbours by one bit":       bitsApart,
		"far from 0":                  farClusters,
	} {
		for _, metric := range []engine.Metric{engine.L2, engine.InnerProduct, engine.Cosine} {
			for _, d := range []int{1, 2, 7, 8, 9, 64, 129, 768} {
				const k = 70
				codewords, rows := make(rand.New(rand.NewPCG(uint64(d), uint64(metric))), d, k)
				desc := engine.CodebookDesc{Dimension: d, Codewords: k, Subspaces: 1, Metric: metric}
				for i := range rows {
					rows[i] = vq.Round(engine.VectorF32, rows[i])
				}
				for i := range codewords {
					codewords[i] = vq.Round(engine.VectorF32, codewords[i])
				}
				e := engine.Encoding{Rows: vq.Encode(engine.VectorF32, rows), Neighbours: 3, Distances: true}
				require.NoError(t, CheckEncoding(dev, desc, vq.Encode(engine.VectorF32, codewords), e, 11), "%s, metric %d, %d elements", name, metric, d)
			}
		}
	}
}

func gaussian(r *rand.Rand, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = vq.Round(engine.VectorF32, r.NormFloat64())
	}
	return out
}

// middles returns rows half way between two codewords, as near as F32 allows.
func middles(r *rand.Rand, d, k int) (codewords, rows []float64) {
	codewords = gaussian(r, k*d)
	for range 100 {
		a, b := r.IntN(k), r.IntN(k)
		for j := range d {
			rows = append(rows, (codewords[a*d+j]+codewords[b*d+j])/2)
		}
	}
	return codewords, rows
}

// orders returns codewords with the same elements in other orders, and rows with equal elements:
// all exact distances are equal.
func orders(r *rand.Rand, d, k int) (codewords, rows []float64) {
	one := gaussian(r, d)
	for range k {
		r.Shuffle(d, func(a, b int) { one[a], one[b] = one[b], one[a] })
		codewords = append(codewords, one...)
	}
	for range 20 {
		v := r.NormFloat64()
		for range d {
			rows = append(rows, v)
		}
	}
	return codewords, rows
}

// bitsApart returns codewords that differ from one in the last bit of one element.
func bitsApart(r *rand.Rand, d, k int) (codewords, rows []float64) {
	one := gaussian(r, d)
	for c := range k {
		codewords = append(codewords, one...)
		at := &codewords[c*d+r.IntN(d)]
		*at = float64(math.Nextafter32(float32(*at), float32(c%3-1)*10))
	}
	for range 50 {
		for j := range d {
			rows = append(rows, one[j]+r.NormFloat64()*float64(r.IntN(2)))
		}
	}
	return codewords, rows
}

// farClusters returns codewords and rows near 1e6 in every element.
func farClusters(r *rand.Rand, d, k int) (codewords, rows []float64) {
	codewords, rows = gaussian(r, k*d), gaussian(r, 100*d)
	for _, v := range [][]float64{codewords, rows} {
		for i := range v {
			v[i] += 1e6
		}
	}
	return codewords, rows
}

// testEncodingAtOnce encodes with one codebook from several goroutines.
func testEncodingAtOnce(t *testing.T, dev engine.Vectors, _ VectorOptions) {
	r := rand.New(rand.NewPCG(8, 8))
	desc := engine.CodebookDesc{Kind: engine.Product, Dimension: 12, Codewords: 16, Subspaces: 3, Type: engine.VectorF16}
	codewords := rowsOf(rowShapes[0], r, desc.Type, desc.Type, 16, 12)
	plain, err := vq.NewCodebook(desc, codewords)
	require.NoError(t, err)
	book, err := dev.NewCodebook(desc, codewords)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 4 {
		e := engine.Encoding{Rows: rowsOf(rowShapes[0], r, engine.VectorF32, desc.Type, 200, 12), Neighbours: 1}
		want, err := plain.Encode(e)
		require.NoError(t, err)
		all.Go(func() {
			for range 5 {
				got, err := book.Encode(e)
				if err != nil || !bytes.Equal(got.Codes, want.Codes) {
					t.Errorf("codes differ beside other calls (%v)", err)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, book.Close())
}
