package relay

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

const (
	trials    = 4
	trialTime = time.Second
	// A trial that reaches minRate to maxRate of the wanted rate ends the calibration.
	minRate, maxRate = 0.99, 1.05
)

// calibrate finds the step time of the sim engine that gives a rate. The worker's loop delivers
// results between two steps, which takes a time that differs among machines. Short trials on the
// worker itself measure that time, and the step becomes shorter by it. If the machine is too slow,
// the result of the last trial is used; the report has the rate that was reached.
func (c *Config) calibrate(ctx context.Context, rate float64, progress func(format string, args ...any)) (step time.Duration, err error) {
	step = c.interval(rate)
	for range trials {
		size := c.size(rate, min(c.Duration, trialTime))
		report, err := c.trial(ctx, rate, step, size)
		if err != nil {
			return 0, err
		}
		if report.Failed > 0 || report.Tokens != uint64(c.Streams)*uint64(size.Output) {
			break // without a valid rate; the run itself reports the loss
		}
		progress("trial: steps of %v give %.0f tokens a second", step, report.TokensPerSecond)
		if report.TokensPerSecond >= minRate*rate && report.TokensPerSecond <= maxRate*rate {
			break
		}
		step = c.nextStep(step, rate, report.TokensPerSecond)
	}
	return step, nil
}

// trial runs the streams on the worker itself.
func (c *Config) trial(ctx context.Context, rate float64, step time.Duration, size load.Size) (_ load.Report, err error) {
	s, err := c.startWorker(ctx, rate, step)
	defer func() { err = errors.Join(err, s.stop()) }()
	if err != nil {
		return load.Report{}, err
	}
	report, err := s.streams(ctx, s.endpoints[0], c.Streams, size)
	return report, errors.Join(err, ctx.Err())
}

// nextStep corrects the step by the difference between the wanted and the measured rate. The result
// is at least a tenth of the interval and at most the interval.
func (c *Config) nextStep(step time.Duration, wanted, measured float64) time.Duration {
	interval := c.interval(wanted)
	late := time.Duration(float64(c.Streams)/measured*float64(time.Second)) - interval
	return min(max(step-late, interval/10), interval).Round(time.Microsecond)
}
