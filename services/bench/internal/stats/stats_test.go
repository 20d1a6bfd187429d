package stats_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/stats"
)

func TestSpreadHasTheMedian(t *testing.T) {
	for name, tc := range map[string]struct {
		values []float64
		want   stats.Spread
	}{
		"none":              {nil, stats.Spread{}},
		"one":               {[]float64{7}, stats.Spread{Median: 7, Min: 7, Max: 7}},
		"odd and unsorted":  {[]float64{9, 1, 4}, stats.Spread{Median: 4, Min: 1, Max: 9}},
		"even":              {[]float64{4, 1, 9, 2}, stats.Spread{Median: 3, Min: 1, Max: 9}},
		"an outlier is out": {[]float64{10, 10, 11, 1000, 9}, stats.Spread{Median: 10, Min: 9, Max: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			given := slices.Clone(tc.values)
			require.Equal(t, tc.want, stats.SpreadOf(tc.values))
			require.Equal(t, given, tc.values, "the caller's values stay in order")
		})
	}
}

func TestQuantilesOfShortDurationsAreExact(t *testing.T) {
	for name, tc := range map[string]struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		"nothing":               {nil, 0.5, 0},
		"one value":             {[]time.Duration{5}, 0.99, 5},
		"the lower middle":      {[]time.Duration{1, 2, 3, 4}, 0.5, 2},
		"the middle":            {[]time.Duration{30, 10, 20}, 0.5, 20},
		"p90 of ten":            {[]time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9},
		"p99 of ten is the max": {[]time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.99, 10},
		"the least":             {[]time.Duration{8, 3, 9}, 0, 3},
		"the most":              {[]time.Duration{8, 3, 9}, 1, 9},
		"negative is zero":      {[]time.Duration{-4, -3}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var h stats.Histogram
			for _, v := range tc.values {
				h.Add(v)
			}
			require.Equal(t, tc.want, h.Quantile(tc.q))
			require.EqualValues(t, len(tc.values), h.Count())
		})
	}
}

func TestQuantilesMatchASortWithinAThousandth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, half stats.Histogram
	var all []time.Duration
	for i := range 20000 {
		d := time.Duration(math.Exp(r.Float64()*30 + 1)) // 1 ns to many hours
		all = append(all, d)
		if i%2 == 0 {
			h.Add(d)
		} else {
			half.Add(d)
		}
	}
	h.Merge(&half)
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all)))), 1)-1]
		require.InEpsilon(t, float64(want), float64(h.Quantile(q)), 1.0/1000, "q %v", q)
	}
	require.Equal(t, all[len(all)-1], h.Quantile(1), "the longest is exact")
	require.Equal(t, all[0], h.Quantile(0), "and the shortest")
}

func TestAddNCountsManyAtOnce(t *testing.T) {
	var h stats.Histogram
	h.AddN(10*time.Millisecond, 99)
	h.AddN(time.Second, 1)
	h.AddN(time.Hour, 0)
	s := h.Summary()
	require.EqualValues(t, 100, s.Count)
	require.InDelta(t, 10, s.P50, 0.01)
	require.InDelta(t, 10, s.P99, 0.01)
	require.InDelta(t, 1000, s.Max, 0)
	require.InDelta(t, (99*10+1000)/100.0, s.Mean, 1e-9)
	require.Equal(t, stats.Summary{}, new(stats.Histogram).Summary())
}

func TestMergeIntoAnEmptyHistogramCopies(t *testing.T) {
	var from, to stats.Histogram
	to.Merge(&from)
	require.Zero(t, to.Count())
	from.Add(5)
	from.Add(7 * time.Second)
	to.Merge(&from)
	require.Equal(t, from.Summary(), to.Summary())
	require.Equal(t, time.Duration(5), to.Quantile(0))
}

func TestBarsCountEveryDurationOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		values []time.Duration
		n      int
		want   int
	}{
		"nothing":          {nil, 8, 0},
		"no bars":          {[]time.Duration{1}, 0, 0},
		"all equal":        {[]time.Duration{time.Second, time.Second}, 8, 1},
		"three magnitudes": {[]time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second}, 8, 8},
	} {
		t.Run(name, func(t *testing.T) {
			var h stats.Histogram
			for _, v := range tc.values {
				h.Add(v)
			}
			bars := h.Bars(tc.n)
			require.Len(t, bars, tc.want)
			var sum uint64
			for i, b := range bars {
				sum += b.Count
				require.True(t, i == 0 || b.UpTo > bars[i-1].UpTo)
			}
			if tc.want > 0 {
				require.EqualValues(t, len(tc.values), sum)
				require.Equal(t, slices.Max(tc.values), bars[len(bars)-1].UpTo)
				require.Positive(t, bars[0].Count)
				require.Positive(t, bars[len(bars)-1].Count)
			}
		})
	}
}
