package vq

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lanes is how many partial sums a sum over a row's elements has: element j is added to sum j % lanes, in ascending order.
const lanes = 8

// total adds the partial sums: each half to the other until one is left.
func total(a []float64) float64 {
	for n := len(a) / 2; n > 0; n /= 2 {
		for i := range n {
			a[i] += a[i+n]
		}
	}
	return a[0]
}

// squared is the sum of (x-c)^2. Every operation is rounded by itself: the conversions forbid a fused one.
func squared(x, c []float64) float64 {
	var a [lanes]float64
	for j := range x {
		t := x[j] - c[j]
		a[j%lanes] += float64(t * t)
	}
	return total(a[:])
}

// dot is the sum of x*c, likewise.
func dot(x, c []float64) float64 {
	var a [lanes]float64
	for j := range x {
		a[j%lanes] += float64(x[j] * c[j])
	}
	return total(a[:])
}

// distance is what the id minimises.
func distance(m engine.Metric, x, c []float64) float64 {
	if m == engine.L2 {
		return squared(x, c)
	}
	return -dot(x, c)
}

// reported is what is told of a distance, and what the energy is the mean of.
func reported(m engine.Metric, d float64) float64 {
	if m == engine.Cosine {
		return 1 + d
	}
	return d
}

// nearest is the argmin of the distance over codewords of a width, the lowest id on ties.
func nearest(m engine.Metric, x, codewords []float64) (id int, least float64) {
	least = math.Inf(1)
	for c := 0; c*len(x) < len(codewords); c++ {
		if d := distance(m, x, codewords[c*len(x):(c+1)*len(x)]); d < least {
			id, least = c, d
		}
	}
	return id, least
}

// normalised divides x by its length; where that is 0 it stays.
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

// Rows are the values that a metric sees: as they came, or for Cosine divided by their length and rounded to F32.
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

// blockRows is how many rows, by their absolute numbers, one partial sum of the energy is of; it has blockLanes of its own.
const blockRows, blockLanes = 4096, 256

// blockSums are the sums of v over blocks: row i of a block is added to lane i % blockLanes.
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
