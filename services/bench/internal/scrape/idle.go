package scrape

import (
	"context"
	"time"
)

// StepSeconds is the measure of a worker that counts the seconds that steps were on its device, of those that have ended.
const StepSeconds = "millrace_step_seconds_sum"

// interval is the time between two looks. The first and the last decide, each wrong by a step at most.
const interval = 200 * time.Millisecond

// Idle is how much of a time no step was on a device.
type Idle struct {
	Seconds float64 `json:"seconds"`      // looked at
	Share   float64 `json:"idle_share"`   // of these, without a step
	Steps   float64 `json:"step_seconds"` // of these, with one, by the device's own time
}

// Watch looks at a worker's measures from now on until done is closed, and gives what was between the first look and the last.
// The worker must have work all the time.
func Watch(ctx context.Context, url string, done <-chan struct{}) (Idle, error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	look := func() (time.Time, float64, error) {
		before := time.Now()
		sum, err := Sum(ctx, url, StepSeconds)
		return before.Add(time.Since(before) / 2), sum, err
	}
	began, first, err := look()
	if err != nil {
		return Idle{}, err
	}
	at, sum := began, first
	for {
		select {
		case <-done:
			return idle(at.Sub(began), sum-first), nil
		case <-ctx.Done():
			return idle(at.Sub(began), sum-first), nil
		case <-ticker.C:
		}
		when, now, err := look()
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return Idle{}, err
		}
		select {
		case <-done: // a look that ended behind the work's end counts its idleness too
		default:
			at, sum = when, now
		}
	}
}

func idle(time time.Duration, steps float64) Idle {
	out := Idle{Seconds: time.Seconds(), Steps: steps}
	if out.Seconds > 0 {
		out.Share = max(1-steps/out.Seconds, 0)
	}
	return out
}
