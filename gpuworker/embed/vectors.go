package embed

import (
	"context"
	"math"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
)

// Shape is how hidden states become vectors.
type Shape struct {
	Pool batch.Pooling
	// Dense multiplies a vector, one layer after another, before anything else.
	Dense []arch.Dense
	// Dimensions is how many leading coordinates are kept; 0 = all.
	Dimensions int
	// Normalize divides a vector by its length, after coordinates were cut. A vector of zeros stays
	// as it is.
	Normalize bool
}

// Vectors returns the vector of each prompt. The prefix cache is neither read nor filled: texts that
// are embedded once would displace the beginnings of conversations, and the mean needs every hidden
// state.
func Vectors(ctx context.Context, loop Loop, prompts [][]int32, shape Shape, job Job) ([][]float32, error) {
	job.Schedule.Bypass = true
	out := make([][]float32, len(prompts))
	_, err := run(ctx, loop, len(prompts), func(i int) batch.Request {
		r := job.request(prompts[i])
		r.Pool = shape.Pool
		return r
	}, func(i int, end *batch.Done) { out[i] = shape.finish(end.Vector) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// finish multiplies, cuts and normalises a vector, which it may change. The squares and their sum are
// float64: a square of a float32 is exact there, so that no machine rounds it in another way.
func (s Shape) finish(v []float32) []float32 {
	for i := range s.Dense {
		v = multiply(&s.Dense[i], v)
	}
	if s.Dimensions > 0 {
		v = v[:min(s.Dimensions, len(v))]
	}
	if !s.Normalize {
		return v
	}
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return v
	}
	length := math.Sqrt(sum)
	for i, x := range v {
		v[i] = float32(float64(x) / length)
	}
	return v
}

// multiply returns the product of a dense layer and a vector. Products of float32 are exact in
// float64, and are added in an order of their own.
func multiply(d *arch.Dense, v []float32) []float32 {
	out := make([]float32, d.Out)
	for i := range out {
		row, sums := d.Rows[i*d.In:(i+1)*d.In], [4]float64{} // an addition need not wait for the one before it
		for j, x := range v {
			sums[j%4] += float64(row[j]) * float64(x)
		}
		out[i] = float32(sums[0] + sums[1] + sums[2] + sums[3])
	}
	return out
}
