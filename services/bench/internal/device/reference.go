package device

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// operands are those of one task.
type operands struct{ a, b, c []float32 }

// want returns element i of a result in float64.
type want func(x operands, i int) float64

func wide(v []float32) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

func silu(a float64) float64 { return reference.SiLU(a) }

func eachElement(value func(a, b float64) float64) want {
	return func(x operands, i int) float64 {
		b := 0.0
		if x.b != nil {
			b = float64(x.b[i])
		}
		return value(float64(x.a[i]), b)
	}
}

// dotOf is a GEMM whose matrix has size columns and inner elements: out(r, c) = b(r) * a(c).
func dotOf(size int) want {
	return func(x operands, i int) float64 {
		row, column := x.b[i/size*size:], x.a[i%size*size:][:size]
		sum := 0.0
		for k, w := range column {
			sum += float64(w) * float64(row[k])
		}
		return sum
	}
}

func softmaxOf(columns int) want {
	return func(x operands, i int) float64 {
		return reference.Softmax(wide(x.a[i/columns*columns:][:columns]))[i%columns]
	}
}

func rmsNormOf(columns int) want {
	return func(x operands, i int) float64 {
		return reference.RMSNorm(wide(x.a[i/columns*columns:][:columns]), wide(x.b), eps)[i%columns]
	}
}

func ropeOf(columns int) want {
	return func(x operands, i int) float64 {
		head := wide(x.a[i/headDim*headDim:][:headDim])
		return reference.Rotate(head, &engine.Rope{Dims: headDim, Style: engine.RopeNorm, Base: ropeBase, Scale: 1}, float64(firstPosition+i/columns))[i%headDim]
	}
}

func attentionOf(keys int) want {
	const width = heads * headDim
	return func(x operands, i int) float64 {
		row, head := i/width, i%width/headDim*headDim
		headRow := func(m []float32) func(int) []float64 {
			return func(key int) []float64 { return wide(m[key*width+head:][:headDim]) }
		}
		query := wide(x.a[row*width+head:][:headDim])
		return reference.Attention(query, row+1, headRow(x.b), headRow(x.c), 1/math.Sqrt(headDim), 0, reference.NoSink)[i%headDim]
	}
}

// samples is the number of elements of a result that are computed in float64.
const samples = 256

// sampled returns indices spread over n elements, or all of a few.
func sampled(n int) []int {
	indices := make([]int, min(samples, n))
	for k := range indices {
		indices[k] = k
		if n > samples { // an equal stride would sample few columns
			indices[k] = int(uint64(k) * 0x9e3779b97f4a7c15 % uint64(n))
		}
	}
	return indices
}

// worst returns the largest error, relative to the wanted magnitude plus the root mean square of
// all wanted values. A NaN is an infinite error.
func worst(n int, got, want func(i int) float64) float64 {
	square := 0.0
	for i := range n {
		square += want(i) * want(i)
	}
	rms := math.Sqrt(square / float64(max(n, 1)))
	most := 0.0
	for i := range n {
		w := want(i)
		off := math.Abs(got(i) - w)
		if off == 0 {
			continue
		}
		share := off / (math.Abs(w) + rms)
		if math.IsNaN(share) {
			return math.Inf(1)
		}
		most = max(most, share)
	}
	return most
}

// sampleError compares sampled elements of a result with float64.
func (t *task) sampleError(x operands, got []float32) float64 {
	indices := sampled(len(got))
	wanted := make([]float64, len(indices))
	for k, index := range indices {
		wanted[k] = t.want(x, index)
	}
	return worst(len(indices), func(k int) float64 { return float64(got[indices[k]]) }, func(k int) float64 { return wanted[k] })
}

// fullError compares every element of a result with another device's.
func fullError(got, other []float32) float64 {
	return worst(len(other), func(i int) float64 { return float64(got[i]) }, func(i int) float64 { return float64(other[i]) })
}
