package memorybench

import (
	"context"
	"time"
)

const (
	// group is how long calls are measured together: far above what the clock costs.
	group = time.Millisecond
	// leastGroups are measured whatever the budget says.
	leastGroups = 3
	// mostCalls are measured together.
	mostCalls = 10000
)

// timed gives the seconds of a call, measured in groups after two calls that are not counted.
func timed(ctx context.Context, c *Config, call func() error) (seconds []float64, err error) {
	if err := call(); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := call(); err != nil {
		return nil, err
	}
	calls := int(min(max(group/max(time.Since(begin), 1), 1), mostCalls))
	for first := time.Now(); len(seconds) < min(leastGroups, c.Repeat) ||
		len(seconds) < c.Repeat && time.Since(first) < c.Budget; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		begin := time.Now()
		for range calls {
			if err := call(); err != nil {
				return nil, err
			}
		}
		seconds = append(seconds, max(time.Since(begin), 1).Seconds()/float64(calls))
	}
	return seconds, nil
}

// each maps every value.
func each(values []float64, to func(float64) float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = to(v)
	}
	return out
}
