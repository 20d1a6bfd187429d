package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// ErrFailed is returned if calls failed or tokens were lost.
var ErrFailed = errors.New("not every stream is complete")

// Run measures every rate. The report is complete if the error is nil or ErrFailed.
func Run(ctx context.Context, c Config, progress func(format string, args ...any)) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &Report{Machine: proc.ThisMachine(), Streams: c.Streams, Connections: c.Connections}
	var err error
	if c.Nginx, err = findNginx(c.Nginx); err != nil {
		r.NoNginx = err.Error()
	}
	var failed error
	for i, rate := range c.Rates {
		stage, err := c.run(ctx, r, rate, i == len(c.Rates)-1, progress)
		if err != nil && !errors.Is(err, ErrFailed) {
			return nil, err
		}
		failed = errors.Join(failed, err)
		r.Rates = append(r.Rates, stage)
	}
	return r, failed
}

// run measures one rate. After the last rate it runs the burst on the same programs.
func (c *Config) run(ctx context.Context, r *Report, rate float64, last bool, progress func(format string, args ...any)) (_ Stage, err error) {
	step, err := c.calibrate(ctx, rate, progress)
	if err != nil {
		return Stage{}, err
	}
	progress("starting the programs for %.0f tokens a second", rate)
	s, err := c.start(ctx, rate, step)
	defer func() { err = errors.Join(err, s.stop()) }()
	if err != nil {
		return Stage{}, err
	}
	progress("TTFT, idle: %d samples of each target", c.Pairs)
	idle, err := s.idle(ctx, c.Pairs, c.Prompt)
	if err != nil {
		return Stage{}, err
	}
	samples, size := make([][]sample, len(s.endpoints)), c.size(rate, c.Duration)
	var failed error
	for round := range c.Rounds {
		for k := range s.endpoints {
			i := (round + k) % len(s.endpoints) // so that no endpoint is always the first
			e := s.endpoints[i]
			progress("%.0f tokens a second, round %d of %d, through %s", rate, round+1, c.Rounds, e.name)
			one, err := s.measure(ctx, e, c.Streams, size)
			if err := errors.Join(err, ctx.Err()); err != nil {
				return Stage{}, err
			}
			failed = errors.Join(failed, checkComplete(e.name, &one.streams, c.Streams, size.Output))
			samples[i] = append(samples[i], one)
		}
	}
	stage := Stage{Rate: rate, Device: device(step)}
	for i, e := range s.endpoints {
		stage.Targets = append(stage.Targets, summarise(e.name, samples[i], idle[i].Summary()))
	}
	if last {
		failed = errors.Join(failed, s.burst(ctx, c, r, progress))
	}
	return stage, errors.Join(failed, ctx.Err())
}

// burst runs many streams at once through the scheduler.
func (s *stage) burst(ctx context.Context, c *Config, r *Report, progress func(format string, args ...any)) (err error) {
	progress("%d streams at once", c.Burst)
	scheduler := s.endpoints[len(s.endpoints)-1]
	if r.Burst, err = s.streams(ctx, scheduler, c.Burst, load.Size{Prompt: c.Prompt, Output: c.BurstTokens}); err != nil {
		return err
	}
	if r.SchedulerRSS, err = scheduler.program.Memory(); err != nil {
		return err
	}
	return checkComplete("burst", &r.Burst, c.Burst, c.BurstTokens)
}

// checkComplete returns ErrFailed unless every stream has all its tokens.
func checkComplete(name string, r *load.Report, streams, output int) error {
	want := uint64(streams) * uint64(output)
	if r.Failed == 0 && r.Tokens == want {
		return nil
	}
	example := ""
	if len(r.Errors) > 0 {
		e := r.Errors[0]
		example = fmt.Sprintf("; %d x %s %s: %s", e.Count, e.Code, e.Reason, e.Example)
	}
	return fmt.Errorf("%w: %s: %d calls failed, %d of %d tokens arrived%s", ErrFailed, name, r.Failed, r.Tokens, want, example)
}
