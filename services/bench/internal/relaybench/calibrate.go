package relaybench

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

const (
	trials    = 4
	trialTime = time.Second
	// From nearRate to overRate of the wanted rate is near enough.
	nearRate, overRate = 0.99, 1.05
)

// calibrate finds the step of the sim engine that gives a rate. Between two steps the worker's loop hands out what the last
// one gave, which takes a time of its own, another on every machine: short trials on the worker itself show it, and the step
// is that much shorter. A machine that is too slow for the rate gets what its trials led to, and the report says what rate it
// reached.
func (c Config) calibrate(ctx context.Context, rate float64, tell func(format string, args ...any)) (step time.Duration, err error) {
	step = c.interval(rate)
	for range trials {
		size := c.size(rate, min(c.Duration, trialTime))
		report, err := c.trial(ctx, rate, step, size)
		if err != nil {
			return 0, err
		}
		if report.Failed > 0 || report.Tokens != uint64(c.Streams)*uint64(size.Output) {
			break // no rate to learn from: the run itself tells what is lost
		}
		got := report.TokensPerSecond
		tell("trial: steps of %v give %.0f tokens a second", step, got)
		if got >= nearRate*rate && got <= overRate*rate {
			break
		}
		step = c.better(step, rate, got)
	}
	return step, nil
}

// trial is what steps of a length give.
func (c Config) trial(ctx context.Context, rate float64, step time.Duration, size load.Size) (_ load.Report, err error) {
	r := c.rig(rate, step)
	r.nginx = false
	m, err := begin(ctx, r)
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return load.Report{}, err
	}
	report, err := m.streams(ctx, &m.fleet.direct[0], c.Streams, size)
	return report, errors.Join(err, ctx.Err())
}

// better is the step that makes up for what a rate lacks or has too much, but never less than a tenth of the interval nor more
// than the interval.
func (c *Config) better(step time.Duration, wanted, got float64) time.Duration {
	interval := c.interval(wanted)
	late := time.Duration(float64(c.Streams)/got*float64(time.Second)) - interval
	return min(max(step-late, interval/10), interval).Round(time.Microsecond)
}
