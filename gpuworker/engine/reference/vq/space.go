package vq

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// space is one subspace of a training: its columns of the rows, and its codewords.
type space struct {
	cfg    *engine.TrainerConfig
	number int
	n, d   int
	x      []float64 // (n, d)
	e      []int     // (d) exponents of the sums
	c      []float64 // (codewords, d), values that the codeword type holds
	last   []float64 // c of the round before; nil in round 0

	ids       []uint32  // (n) of the last assignment; nil before
	distances []float64 // (n) likewise, as minimised and not as reported
	loads     []uint64  // (codewords) likewise

	p, v []float64 // (codewords, d) Annealed: places and velocities
}

func newSpace(cfg *engine.TrainerConfig, number int, rows []float64) *space {
	full, d := cfg.Codebook.Dimension, cfg.Codebook.Width()
	s := &space{cfg: cfg, number: number, n: len(rows) / full, d: d}
	for ; len(rows) > 0; rows = rows[full:] {
		s.x = append(s.x, rows[number*d:(number+1)*d]...)
	}
	s.e = make([]int, d)
	for j := range d {
		s.e[j] = exponent(s.largest(j), uint64(s.n))
	}
	return s
}

func (s *space) row(i int) []float64      { return s.x[i*s.d : (i+1)*s.d] }
func (s *space) codeword(c int) []float64 { return s.c[c*s.d : (c+1)*s.d] }

// largest returns max |x| of a column.
func (s *space) largest(j int) (a float64) {
	for i := range s.n {
		a = max(a, s.row(i)[j], -s.row(i)[j])
	}
	return a
}

func (s *space) round(v float64) float64 { return Round(s.cfg.Codebook.Type, v) }

// assign finds the id of every row, and returns how many changed and the sum of the reported
// distances.
func (s *space) assign() (changes int64, energy float64) {
	k := s.cfg.Codebook.Codewords
	before := s.ids
	s.ids, s.distances, s.loads = make([]uint32, s.n), make([]float64, s.n), make([]uint64, k)
	told := make([]float64, s.n)
	for i := range s.n {
		id, d := nearest(s.cfg.Codebook.Metric, s.row(i), s.c)
		s.ids[i], s.distances[i], told[i] = uint32(id), d, reported(s.cfg.Codebook.Metric, d)
		s.loads[id]++
		if before == nil || before[i] != s.ids[i] {
			changes++
		}
	}
	return changes, sum(blockSums(told))
}

// sums returns the integer sums of the rows of each codeword for which keep returns true.
func (s *space) sums(keep func(row int) bool) []int64 {
	out := make([]int64, len(s.c))
	for i := range s.n {
		if keep(i) {
			for j, x := range s.row(i) {
				out[int(s.ids[i])*s.d+j] += quantised(x, s.e[j])
			}
		}
	}
	return out
}

// variances returns the mean reported distances of the rows of each codeword, from integer sums.
func (s *space) variances() []float64 {
	reports, largest := make([]float64, s.n), 0.0
	for i, d := range s.distances {
		reports[i] = reported(s.cfg.Codebook.Metric, d)
		largest = max(largest, math.Abs(reports[i]))
	}
	e := exponent(largest, uint64(s.n))
	sums, out := make([]int64, len(s.loads)), make([]float64, len(s.loads))
	for i, d := range reports {
		sums[s.ids[i]] += quantised(d, e)
	}
	for c, n := range s.loads {
		if n > 0 {
			out[c] = math.Ldexp(float64(sums[c]), -e) / float64(n)
		}
	}
	return out
}

// far compares rows by (distance descending, row ascending).
func (s *space) far(a, b int) int {
	return cmp.Or(cmp.Compare(s.distances[b], s.distances[a]), cmp.Compare(a, b))
}

// members returns the rows of each codeword, the nearest first, and the lowest row among equals.
func (s *space) members() [][]int {
	out := make([][]int, s.cfg.Codebook.Codewords)
	for i, id := range s.ids {
		out[id] = append(out[id], i)
	}
	for _, rows := range out {
		slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(s.distances[a], s.distances[b]) })
	}
	return out
}

// empty returns the codewords without a row, in ascending order.
func (s *space) empty() (out []int) {
	for c, n := range s.loads {
		if n == 0 {
			out = append(out, c)
		}
	}
	return out
}
