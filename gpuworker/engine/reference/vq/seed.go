package vq

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// seed sets the first codewords.
func (s *space) seed(given []float64) {
	k := s.cfg.Codebook.Codewords
	switch s.cfg.Init {
	case engine.Random:
		for c := range k {
			s.take(int(pick(s.cfg.Seed, uint64(c), uint64(k), uint64(s.n), drawRandom, s.number)))
		}
	case engine.KMeansPlusPlus:
		s.spread(drawPlus, s.weighted)
	case engine.Farthest:
		s.spread(drawFar, func(least []float64, _ uint64) int { return farthest(least) })
	default:
		s.c = given
	}
	if s.cfg.Algorithm == engine.Annealed {
		s.p, s.v = append([]float64(nil), s.c...), make([]float64, len(s.c))
	}
}

// take appends a row as a codeword, rounded, and for inner products divided by its length before.
func (s *space) take(row int) {
	s.c = append(s.c, s.asCodeword(s.row(row))...)
}

func (s *space) asCodeword(x []float64) []float64 {
	if s.cfg.Codebook.Metric != engine.L2 {
		x = normalised(x)
	}
	out := make([]float64, s.d)
	for j := range x {
		out[j] = s.round(x[j])
	}
	return out
}

// spread takes one row after another as codewords. The first is drawn. choose selects each later
// one by a draw and the squared distance of every row to its nearest codeword so far.
func (s *space) spread(of purpose, choose func(least []float64, u uint64) int) {
	least := make([]float64, s.n)
	for i := range least {
		least[i] = math.Inf(1)
	}
	s.take(int(below(draw(s.cfg.Seed, 0, 0, of, s.number), uint64(s.n))))
	for c := 1; c < s.cfg.Codebook.Codewords; c++ {
		for i := range s.n {
			least[i] = min(least[i], squared(s.row(i), s.codeword(c-1)))
		}
		s.take(choose(least, draw(s.cfg.Seed, 0, uint32(c), of, s.number)))
	}
}

// weighted returns a row with a probability proportional to its weight. It finds the block in which
// the running sum over blocks passes the target, and in it the row in which the running sum over
// rows passes the rest of the target.
func (s *space) weighted(weights []float64, u uint64) int {
	blocks := blockSums(weights)
	all := sum(blocks)
	if all == 0 {
		return int(below(u, uint64(s.n)))
	}
	target := float64(unit(u) * all)
	block, before := pass(blocks, target)
	rows := weights[block*blockRows : min((block+1)*blockRows, len(weights))]
	row, _ := pass(rows, target-before)
	return block*blockRows + row
}

// pass returns the first index whose running sum is above the target, and the running sum before
// it. If rounding leaves no such index, it returns the last one that is not 0.
func pass(v []float64, target float64) (at int, before float64) {
	running := 0.0
	for i, x := range v {
		if x > 0 {
			at, before = i, running
		}
		if running += x; running > target {
			return i, before
		}
	}
	return at, before
}

// farthest returns the row with the largest value, and the lowest row on ties.
func farthest(v []float64) (row int) {
	for i := range v {
		if v[i] > v[row] {
			row = i
		}
	}
	return row
}
