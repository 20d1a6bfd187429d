package relaybench

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

const (
	trials    = 3
	trialTime = time.Second
	nearRate  = 0.99 // of the wanted rate
)

// calibrate finds the step of the sim engine that gives the wanted rate. Between two steps the worker's loop hands out what
// the last one gave, which takes a time of its own, another on every machine: short trials show it, and the step is that much
// shorter. A machine that is too slow for the rate gets what its trials led to, and the report says what rate it reached.
func calibrate(ctx context.Context, c Config, tell func(format string, args ...any)) (step time.Duration, err error) {
	step = c.interval()
	c.Duration = min(c.Duration, trialTime)
	for range trials {
		report, err := trial(ctx, c, step)
		if err != nil {
			return 0, err
		}
		if report.Failed > 0 || report.Tokens != uint64(c.Streams)*uint64(c.size().Output) {
			break // no rate to learn from: the run itself tells what is lost
		}
		rate := report.TokensPerSecond
		tell("trial: steps of %v give %.0f tokens a second", step, rate)
		if rate >= nearRate*c.Rate {
			break
		}
		step = c.shorter(step, rate)
	}
	return step, nil
}

// trial is what steps of a length give.
func trial(ctx context.Context, c Config, step time.Duration) (_ load.Report, err error) {
	m, err := begin(ctx, c, step)
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return load.Report{}, err
	}
	report, err := m.streams(ctx, c.Streams, c.size())
	return report, errors.Join(err, ctx.Err())
}

// shorter is the step that makes up for what a rate lacks, but never less than a tenth of the interval.
func (c *Config) shorter(step time.Duration, rate float64) time.Duration {
	got := time.Duration(float64(c.Streams) / rate * float64(time.Second))
	return max(step-(got-c.interval()), c.interval()/10).Round(time.Microsecond)
}
