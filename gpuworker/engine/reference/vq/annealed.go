package vq

import (
	"cmp"
	"math"
	"slices"
)

// anneal moves each codeword towards the trimmed mean of its rows. A codeword without rows does not
// move.
func (s *space) anneal(temperature float64) {
	s.last = slices.Clone(s.c)
	a := &s.cfg.Annealing
	kept := map[int]bool{}
	keep := make([]uint64, len(s.loads))
	for c, rows := range s.members() {
		keep[c] = uint64(s.kept(len(rows)))
		for _, i := range rows[:keep[c]] {
			kept[i] = true
		}
	}
	sums := s.sums(func(row int) bool { return kept[row] })
	rate := a.LearningRate * temperature
	for c, n := range keep {
		v, p := s.v[c*s.d:(c+1)*s.d], s.p[c*s.d:(c+1)*s.d]
		if n == 0 {
			clear(v)
			continue
		}
		for j := range v {
			m := math.Ldexp(float64(sums[c*s.d+j]), -s.e[j]) / float64(n)
			v[j] = float64(a.Momentum*v[j]) + float64(rate*(m-p[j]))
		}
		if length := math.Sqrt(dot(v, v)); a.StepLimit > 0 && length > a.StepLimit {
			factor := a.StepLimit / length
			for j := range v {
				v[j] *= factor
			}
		}
		for j := range v {
			p[j] += v[j]
		}
		s.place(c)
	}
}

// kept returns how many of n rows trimming keeps.
func (s *space) kept(n int) int { return n - int(math.Floor(s.cfg.Annealing.Trim*float64(n))) }

// place rounds the position of a codeword to its value.
func (s *space) place(c int) {
	for j := range s.d {
		s.codeword(c)[j] = s.round(s.p[c*s.d+j])
	}
}

// maintain merges near codewords and splits those with too many rows. It uses the loads and
// distances of the assignment, and the codewords of the update that followed.
func (s *space) maintain() (merged, split int64) {
	loads, touched := slices.Clone(s.loads), make([]bool, len(s.loads))
	if s.cfg.Annealing.MergeDistance > 0 {
		merged = s.merge(loads, touched)
	}
	if s.cfg.Annealing.SplitLoad > 0 {
		split = s.split(loads, touched)
	}
	return merged, split
}

// merge joins each codeword, in ascending order, with the nearest other codeword that has rows, if
// it is near enough and neither was joined before. The lower one gets both loads and the weighted
// mean of their positions. The higher one gets the same position and no load.
func (s *space) merge(loads []uint64, touched []bool) (merged int64) {
	limit := s.cfg.Annealing.MergeDistance * s.cfg.Annealing.MergeDistance
	before := slices.Clone(s.c)
	at := func(c int) []float64 { return before[c*s.d : (c+1)*s.d] }
	for b := range loads {
		a, least := -1, limit
		for other, n := range s.loads {
			if s.loads[b] == 0 || n == 0 || other == b {
				continue
			}
			if d := squared(at(b), at(other)); d < least {
				a, least = other, d
			}
		}
		if a < 0 || touched[a] || touched[b] {
			continue
		}
		low, high := min(a, b), max(a, b)
		for j := range s.d {
			p, q := &s.p[low*s.d+j], &s.p[high*s.d+j]
			*p = (float64(float64(loads[low])**p) + float64(float64(loads[high])**q)) / float64(loads[low]+loads[high])
			*q = *p
			s.v[low*s.d+j], s.v[high*s.d+j] = 0, 0
		}
		s.place(low)
		s.place(high)
		loads[low], loads[high] = loads[low]+loads[high], 0
		touched[low], touched[high] = true, true
		merged++
	}
	return merged
}

// split moves codewords without a load, in ascending order, to the farthest kept rows of codewords
// with too large a load, the largest first. It splits no merged codeword, and none whose kept rows
// all equal it.
func (s *space) split(loads []uint64, touched []bool) (split int64) {
	limit := s.cfg.Annealing.SplitLoad * (float64(s.n) / float64(len(loads)))
	members := s.members()
	last := func(c int) int { return members[c][s.kept(len(members[c]))-1] }
	var donors, free []int
	for c, n := range loads {
		switch {
		case n == 0:
			free = append(free, c)
		case !touched[c] && float64(n) > limit && s.distances[last(c)] > 0:
			donors = append(donors, c)
		}
	}
	slices.SortStableFunc(donors, func(a, b int) int { return cmp.Compare(loads[b], loads[a]) })
	for i, c := range free[:min(len(free), len(donors))] {
		copy(s.p[c*s.d:(c+1)*s.d], s.row(last(donors[i])))
		clear(s.v[c*s.d : (c+1)*s.d])
		s.place(c)
		split++
	}
	return split
}
