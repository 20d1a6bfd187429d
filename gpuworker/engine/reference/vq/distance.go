package vq

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lanes is the number of partial sums in a sum over a row's elements. Element j is added to sum
// j % lanes, in ascending order.
const lanes = 8

// total adds the partial sums: one half to the other, until one sum is left.
func total(a []float64) float64 {
	for n := len(a) / 2; n > 0; n /= 2 {
		for i := range n {
			a[i] += a[i+n]
		}
	}
	return a[0]
}

// squared returns the sum of (x-c)^2. Every operation is rounded separately: the conversions forbid
// a fused multiply-add.
func squared(x, c []float64) float64 {
	var a [lanes]float64
	for j := range x {
		t := x[j] - c[j]
		a[j%lanes] += float64(t * t)
	}
	return total(a[:])
}

// dot returns the sum of x*c, likewise.
func dot(x, c []float64) float64 {
	var a [lanes]float64
	for j := range x {
		a[j%lanes] += float64(x[j] * c[j])
	}
	return total(a[:])
}

// distance returns the value that the id minimises.
func distance(m engine.Metric, x, c []float64) float64 {
	if m == engine.L2 {
		return squared(x, c)
	}
	return -dot(x, c)
}

// reported returns the distance as it is reported. The energy is the mean of these.
func reported(m engine.Metric, d float64) float64 {
	if m == engine.Cosine {
		return 1 + d
	}
	return d
}

// nearest returns the argmin of the distance over codewords of a width, and the lowest id on ties.
func nearest(m engine.Metric, x, codewords []float64) (id int, least float64) {
	least = math.Inf(1)
	for c := 0; c*len(x) < len(codewords); c++ {
		if d := distance(m, x, codewords[c*len(x):(c+1)*len(x)]); d < least {
			id, least = c, d
		}
	}
	return id, least
}

// normalised returns x divided by its length, and x itself if that is 0.
func normalised(x []float64) []float64 {
	out := make([]float64, len(x))
	length := math.Sqrt(dot(x, x))
	for j := range x {
		if out[j] = x[j]; length > 0 {
			out[j] = x[j] / length
		}
	}
	return out
}

// Rows returns the values that a metric compares: unchanged, or for Cosine divided by their length
// and rounded to F32.
func Rows(m engine.Metric, dimension int, values []float64) []float64 {
	if m != engine.Cosine {
		return values
	}
	out := make([]float64, 0, len(values))
	for ; len(values) > 0; values = values[dimension:] {
		for _, v := range normalised(values[:dimension]) {
			out = append(out, Round(engine.VectorF32, v))
		}
	}
	return out
}

// blockRows is the number of consecutive rows in one partial sum of the energy, which has
// blockLanes lanes.
const blockRows, blockLanes = 4096, 256

// blockSums returns the sums of v over blocks. Row i of a block is added to lane i % blockLanes.
func blockSums(v []float64) []float64 {
	var out []float64
	for ; len(v) > 0; v = v[min(blockRows, len(v)):] {
		var a [blockLanes]float64
		for i, x := range v[:min(blockRows, len(v))] {
			a[i%blockLanes] += x
		}
		out = append(out, total(a[:]))
	}
	return out
}

// sum adds in ascending order.
func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}
