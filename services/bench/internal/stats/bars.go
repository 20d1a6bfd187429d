package stats

import (
	"math"
	"time"
)

// Bar is one line of a drawn histogram: how many durations lie above the bar before it and up to UpTo.
type Bar struct {
	UpTo  time.Duration
	Count uint64
}

// Bars groups the durations between the shortest and the longest into at most n bars whose bounds grow by a constant
// factor. The counts add up to Count; an empty histogram has no bars.
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
	at := 0
	for i, count := range h.counts {
		for at < n-1 && top(i) > bars[at].UpTo {
			at++
		}
		bars[at].Count += count
	}
	return bars
}
