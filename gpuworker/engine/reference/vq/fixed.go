package vq

import (
	"math"
	"math/bits"

	"github.com/millrace/millrace/gpuworker/engine"
)

// exponent is E of a column: an element x counts as the integer nearest to x * 2^E, so that n of them, none larger than
// largest, add up to at most 2^62.
func exponent(largest float64, n uint64) int {
	if largest == 0 {
		return 0
	}
	_, a := math.Frexp(largest)     // largest < 2^a
	return 62 - a - bits.Len64(n-1) // n <= 2^b
}

// quantised is the integer nearest to x * 2^e, ties to even.
func quantised(x float64, e int) int64 { return int64(math.RoundToEven(math.Ldexp(x, e))) }

// mean rounds sum / n / 2^e once. 1 <= n < 2^32.
//
// The quotient is made with at least 30 bits, and a lost remainder sets its last bit, so that rounding it is rounding the
// exact one.
func mean(to engine.Element, sum int64, n uint64, e int) float64 {
	if sum == 0 {
		return 0
	}
	magnitude := uint64(max(sum, -sum))
	shift := bits.LeadingZeros64(magnitude) - 1
	q, rest := magnitude<<shift/n, magnitude<<shift%n
	drop := max(bits.Len64(q)-32, 0)
	if odd := q >> drop; odd<<drop != q || rest != 0 {
		q = odd | 1
	} else {
		q = odd
	}
	v := math.Ldexp(float64(q), drop-shift-e)
	if sum < 0 {
		v = -v
	}
	return Round(to, v)
}
