package vq

import (
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// lloyd moves each codeword to the mean of its rows, rounded once. It then moves codewords without
// rows to the farthest rows.
func (s *space) lloyd() {
	s.last = slices.Clone(s.c)
	sums := s.sums(func(int) bool { return true })
	for c, n := range s.loads {
		if n == 0 {
			continue
		}
		if s.cfg.Codebook.Metric == engine.L2 {
			for j := range s.d {
				s.codeword(c)[j] = mean(s.cfg.Codebook.Type, sums[c*s.d+j], n, s.e[j])
			}
		} else {
			s.direct(c, sums[c*s.d:(c+1)*s.d])
		}
	}
	s.reseed()
}

// direct sets a codeword to the direction of a sum with length 1. A sum of 0 has no direction and
// changes nothing.
func (s *space) direct(c int, sums []int64) {
	m := make([]float64, s.d)
	for j := range m {
		m[j] = math.Ldexp(float64(sums[j]), -s.e[j])
	}
	if length := math.Sqrt(dot(m, m)); length > 0 {
		for j := range m {
			s.codeword(c)[j] = s.round(m[j] / length)
		}
	}
}

// reseed moves the codewords without rows, in ascending order, to the rows that are farthest from
// their codewords, one each. With L2 it skips rows at distance 0: if there are fewer different rows
// than codewords, the other codewords do not move.
func (s *space) reseed() {
	empty := s.empty()
	if len(empty) == 0 {
		return
	}
	rows := make([]int, s.n)
	for i := range rows {
		rows[i] = i
	}
	slices.SortFunc(rows, s.far)
	for i, c := range empty {
		if i == len(rows) || s.cfg.Codebook.Metric == engine.L2 && s.distances[rows[i]] == 0 {
			return
		}
		copy(s.codeword(c), s.asCodeword(s.row(rows[i])))
	}
}
