package reference

import (
	"math"
	"runtime"
	"sync"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Matmul computes out(rows, cols) = b(rows, inner) * a(cols, inner)^T. Columns are divided among
// the processors.
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

// dot takes most of the reference's time. It only reads memory that its callers own, so the race
// detector is off: it could find nothing, and would make dot ten times slower.
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

// Softmax returns the softmax of one row, and zeros for a row of -inf.
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

// LogSoftmax returns the log-softmax of one row.
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

// RMSNorm returns a / sqrt(mean(a^2) + eps) * weight of one row.
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

// SiLU returns a / (1 + exp(-a)).
func SiLU(a float64) float64 { return a / (1 + math.Exp(-a)) }

// GELUTanh returns a * sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3)), the approximation of GELU by tanh.
func GELUTanh(a float64) float64 {
	return a / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a)))
}

// ClampedSwish returns y / (1 + exp(-1.702 y)) of y = min(a, 7).
func ClampedSwish(a float64) float64 {
	a = min(a, 7)
	return a / (1 + math.Exp(-1.702*a))
}

// Cap returns cap * tanh(v / cap), or v if cap is 0.
func Cap(v, limit float64) float64 {
	if limit == 0 {
		return v
	}
	return limit * math.Tanh(v/limit)
}

// Rotate rotates the leading dims of one head at a position.
func Rotate(head []float64, r *engine.Rope, position float64) []float64 {
	out := append([]float64(nil), head...)
	magnitude := 1.0
	if r.Magnitude != 0 {
		magnitude = float64(r.Magnitude)
	}
	for i := range r.Dims / 2 {
		frequency := math.Pow(float64(r.Base), -2*float64(i)/float64(r.Dims)) / float64(r.Scale)
		if r.Divisors != nil {
			frequency /= r.Divisors[i]
		}
		first, second := 2*i, 2*i+1
		if r.Style == engine.RopeNeox {
			first, second = i, i+r.Dims/2
		}
		sin, cos := math.Sincos(position * frequency)
		sin, cos = sin*magnitude, cos*magnitude
		out[first] = head[first]*cos - head[second]*sin
		out[second] = head[first]*sin + head[second]*cos
	}
	return out
}

// Temperature returns the factor of the queries at a position.
func Temperature(m *engine.Mixer, position int) float64 {
	return 1 + float64(m.TemperatureScale)*math.Log(1+math.Floor(float64(position)/float64(m.TemperatureLength)))
}

// NoSink is the sink of attention without one.
var NoSink = math.Inf(-1)

// Attention returns the attention of one query head over n keys and values. key and value return
// those of a position. Scores are capped unless limit is 0. The sink is one more score, whose value is
// nothing.
func Attention(q []float64, n int, key, value func(i int) []float64, scale, limit, sink float64) []float64 {
	scores := make([]float64, n+1)
	for i := range n {
		scores[i] = Cap(dot(q, key(i))*scale, limit)
	}
	scores[n] = sink
	out := make([]float64, len(value(0)))
	for i, p := range Softmax(scores)[:n] {
		for j, v := range value(i)[:len(out)] {
			out[j] += p * v
		}
	}
	return out
}
