package stats

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// precision is the number of significant bits of a bucket's bounds. Durations below 2^precision ns
// are exact, others within a relative error of 2^(1-precision).
const precision = 11

// Histogram counts durations. The zero value is empty and ready to use. Negative durations count
// as zero.
type Histogram struct {
	counts   []uint64 // by bucket
	count    uint64
	sum      float64 // ns
	min, max time.Duration
}

// bucket returns the index of the bucket of v.
func bucket(v uint64) int {
	shift := max(bits.Len64(v)-precision, 0)
	return shift<<(precision-1) + int(v>>shift)
}

// top returns the largest duration of bucket i.
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

// Merge adds everything that o counted.
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

// Count returns the number of durations.
func (h *Histogram) Count() uint64 { return h.count }

// Quantile returns the smallest duration that is not exceeded by at least the share q of all
// durations, for q in [0, 1]; 0 if the histogram is empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.count == 0 {
		return 0
	}
	rank := max(uint64(math.Ceil(q*float64(h.count))), 1)
	var counted uint64
	for i, n := range h.counts {
		if counted += n; counted >= rank {
			return max(min(top(i), h.max), h.min)
		}
	}
	return h.max
}

// Summary is a distribution in milliseconds.
type Summary struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

// Summary returns the mean, quantiles and maximum.
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

// Bar is one line of a drawn histogram: the number of durations above the bar before it and up to
// UpTo.
type Bar struct {
	UpTo  time.Duration
	Count uint64
}

// Bars groups the durations into at most n bars whose bounds grow by a constant factor. The counts
// add up to Count. An empty histogram has no bars.
func (h *Histogram) Bars(n int) []Bar {
	if h.count == 0 || n <= 0 {
		return nil
	}
	low, high := float64(max(h.min, 1)), float64(max(h.max, 1))
	if high <= low*1.001 {
		return []Bar{{UpTo: h.max, Count: h.count}}
	}
	bars := make([]Bar, n)
	factor := math.Pow(high/low, 1/float64(n))
	for i := range bars {
		bars[i].UpTo = time.Duration(low * math.Pow(factor, float64(i+1)))
	}
	bars[n-1].UpTo = h.max
	current := 0
	for i, count := range h.counts {
		for current < n-1 && top(i) > bars[current].UpTo {
			current++
		}
		bars[current].Count += count
	}
	return bars
}

// Spread summarises the repeats of one figure. Min <= Median <= Max.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf returns the spread of the values, and zero for no values. The median of an even
// number of values is the mean of the middle two.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	median := sorted[mid]
	if len(sorted)%2 == 0 {
		median = (sorted[mid-1] + sorted[mid]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}
}
