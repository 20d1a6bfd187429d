package vq

import (
	"math/bits"

	"github.com/millrace/millrace/gpuworker/engine/reference/philox"
)

// purpose is the use of a draw: no two uses share numbers. 0 is the sampler of tokens.
type purpose uint32

const (
	drawSample purpose = 1 // which rows of a training are used
	drawRandom purpose = 2
	drawPlus   purpose = 3
	drawFar    purpose = 4
)

// draw returns 64 uniform bits of Philox4x32-10, the high ones first, with the seed as key and
// (row, round, purpose, subspace) as counter.
func draw(seed uint64, row, round uint32, of purpose, subspace int) uint64 {
	return philox.Bits(seed, [4]uint32{row, round, uint32(of), uint32(subspace)})
}

// below returns a number 0..n-1 from 64 uniform bits: the high half of their product with n.
func below(u, n uint64) uint64 {
	high, _ := bits.Mul64(u, n)
	return high
}

// unit returns a number in [0, 1) from 64 uniform bits: a multiple of 2^-53.
func unit(u uint64) float64 { return float64(u>>11) * 0x1p-53 }

// stratum returns part t of parts: rows lo..hi-1 of n, as even as integers allow. The products may
// have 128 bits.
func stratum(t, parts, n uint64) (lo, hi uint64) { return share(t, parts, n), share(t+1, parts, n) }

// share returns t * n / parts, for t <= parts.
func share(t, parts, n uint64) uint64 {
	if t == parts {
		return n
	}
	high, low := bits.Mul64(t, n)
	quotient, _ := bits.Div64(high, low, parts)
	return quotient
}

// pick returns one row of stratum t of parts.
func pick(seed uint64, t, parts, n uint64, of purpose, subspace int) uint64 {
	lo, hi := stratum(t, parts, n)
	return lo + below(draw(seed, uint32(t), 0, of, subspace), hi-lo)
}

// Sample returns the row of a data set of n rows that becomes row t of a training on `rows` of
// them. It increases with t.
func Sample(seed, t, rows, n uint64) uint64 { return pick(seed, t, rows, n, drawSample, 0) }
