package reference

import (
	"math"
	"runtime"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Matmul is out(rows, cols) = b(rows, inner) * a(cols, inner)^T. Columns are spread over the processors.
func Matmul(a, b []float64, rows, cols, inner int) []float64 {
	out := make([]float64, rows*cols)
	workers := runtime.GOMAXPROCS(0)
	if rows*cols*inner < 1<<16 {
		workers = 1
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for c := w; c < cols; c += workers {
				weights := a[c*inner : (c+1)*inner]
				for r := range rows {
					out[r*cols+c] = dot(weights, b[r*inner:(r+1)*inner])
				}
			}
		})
	}
	wg.Wait()
	return out
}

// dot is where the reference spends its time. It only reads what its callers own, so the race detector has nothing to
// find in it and would make it ten times slower.
//
//go:norace
func dot(a, b []float64) float64 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float64
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

// Softmax of one row; a row of -inf gives zeros.
func Softmax(a []float64) []float64 {
	out := make([]float64, len(a))
	top := math.Inf(-1)
	for _, v := range a {
		top = math.Max(top, v)
	}
	if math.IsInf(top, -1) {
		return out
	}
	sum := 0.0
	for i, v := range a {
		out[i] = math.Exp(v - top)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// LogSoftmax of one row.
func LogSoftmax(a []float64) []float64 {
	top := math.Inf(-1)
	for _, v := range a {
		top = math.Max(top, v)
	}
	sum := 0.0
	for _, v := range a {
		sum += math.Exp(v - top)
	}
	out := make([]float64, len(a))
	for i, v := range a {
		out[i] = v - top - math.Log(sum)
	}
	return out
}

// RMSNorm of one row: a / sqrt(mean(a^2) + eps) * weight.
func RMSNorm(a, weight []float64, eps float64) []float64 {
	sum := 0.0
	for _, v := range a {
		sum += v * v
	}
	scale := 1 / math.Sqrt(sum/float64(len(a))+eps)
	out := make([]float64, len(a))
	for i, v := range a {
		out[i] = v * scale * weight[i]
	}
	return out
}

// SiLU is a / (1 + exp(-a)).
func SiLU(a float64) float64 { return a / (1 + math.Exp(-a)) }

// Rope rotates the leading dims of one head at a position; factors is nil or has dims/2.
func Rope(head []float64, dims int, style engine.RopeStyle, position, base, scale float64, factors []float64) []float64 {
	out := append([]float64(nil), head...)
	frequencies := make([]float64, dims/2)
	for i := range frequencies {
		frequencies[i] = math.Pow(base, -2*float64(i)/float64(dims)) / scale
	}
	for i, f := range factors {
		frequencies[i] /= f
	}
	for i, frequency := range frequencies {
		first, second := 2*i, 2*i+1
		if style == engine.RopeNeox {
			first, second = i, i+dims/2
		}
		sin, cos := math.Sincos(position * frequency)
		out[first] = head[first]*cos - head[second]*sin
		out[second] = head[first]*sin + head[second]*cos
	}
	return out
}

// Attention of one query head over n keys and values; key and value give those of a position.
func Attention(q []float64, n int, key, value func(i int) []float64, scale float64) []float64 {
	scores := make([]float64, n)
	for i := range n {
		scores[i] = dot(q, key(i)) * scale
	}
	out := make([]float64, len(q))
	for i, p := range Softmax(scores) {
		for j, v := range value(i)[:len(q)] {
			out[j] += p * v
		}
	}
	return out
}
