package vq

import (
	"math"
	"math/bits"

	"github.com/millrace/millrace/gpuworker/engine"
)

// exponent returns E of a column: an element x is summed as the integer nearest to x * 2^E, so that
// the sum of n elements, none larger than largest, is at most 2^62.
func exponent(largest float64, n uint64) int {
	if largest == 0 {
		return 0
	}
	_, a := math.Frexp(largest)     // largest < 2^a
	return 62 - a - bits.Len64(n-1) // n <= 2^b
}

// quantised returns the integer nearest to x * 2^e, with ties to even.
func quantised(x float64, e int) int64 { return int64(math.RoundToEven(math.Ldexp(x, e))) }

// mean returns sum / n / 2^e, rounded once. 1 <= n < 2^32.
//
// The quotient has at least 30 bits, and a remainder sets its last bit, so that rounding it gives
// the same result as rounding the exact quotient.
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
