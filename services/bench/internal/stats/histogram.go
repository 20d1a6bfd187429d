package stats

import (
	"math"
	"math/bits"
	"time"
)

// precision is the number of bits that a bucket's bounds have: durations below 2^precision ns are exact, others within
// 2^(1-precision).
const precision = 11

// Histogram counts durations. The zero value is empty and ready; negative durations count as zero.
type Histogram struct {
	counts   []uint64 // by bucket, as long as needed
	count    uint64
	sum      float64 // ns
	min, max time.Duration
}

// bucket is the index of the bucket that holds v.
func bucket(v uint64) int {
	shift := max(bits.Len64(v)-precision, 0)
	return shift<<(precision-1) + int(v>>shift)
}

// top is the largest duration of bucket i.
func top(i int) time.Duration {
	shift := max(i>>(precision-1)-1, 0)
	return time.Duration(uint64(i-shift<<(precision-1)+1)<<shift - 1)
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) { h.AddN(d, 1) }

// AddN counts d n times.
func (h *Histogram) AddN(d time.Duration, n uint64) {
	if n == 0 {
		return
	}
	d = max(d, 0)
	i := bucket(uint64(d))
	for len(h.counts) <= i {
		h.counts = append(h.counts, 0)
	}
	h.counts[i] += n
	if h.count == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.count += n
	h.sum += float64(d) * float64(n)
}

// Merge counts everything that o counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.count == 0 {
		return
	}
	for len(h.counts) < len(o.counts) {
		h.counts = append(h.counts, 0)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	if h.count == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.count += o.count
	h.sum += o.sum
}

// Count is how many durations were added.
func (h *Histogram) Count() uint64 { return h.count }

// Quantile is the smallest duration that at least the share q of all durations do not exceed; q in [0, 1]. Of an empty
// histogram it is 0.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1)
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			return max(min(top(i), h.max), h.min)
		}
	}
	return h.max
}

// Summary is what is told of a distribution, in milliseconds.
type Summary struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Summary sums the histogram up.
func (h *Histogram) Summary() Summary {
	if h.count == 0 {
		return Summary{}
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	return Summary{
		Count: h.count, Mean: h.sum / float64(h.count) / 1e6,
		P50: ms(h.Quantile(0.5)), P90: ms(h.Quantile(0.9)), P99: ms(h.Quantile(0.99)), Max: ms(h.max),
	}
}
