package relaybench

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// ErrFailed says that calls failed or tokens were lost.
var ErrFailed = errors.New("not every stream came through whole")

// Cost measures processor time for each relayed token and time to the first token, at each rate. The report is complete
// when the error is nil or ErrFailed.
func Cost(ctx context.Context, c Config, tell func(format string, args ...any)) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &Report{Machine: machine.Look(), Streams: c.Streams, Connections: c.Connections}
	if _, err := c.findNginx(); err != nil {
		r.NoNginx, c.Nginx = err.Error(), ""
	}
	var failed error
	for i, rate := range c.Rates {
		stage, err := c.stage(ctx, r, rate, i == len(c.Rates)-1, tell)
		if err != nil && !errors.Is(err, ErrFailed) {
			return nil, err
		}
		failed = errors.Join(failed, err)
		r.Rates = append(r.Rates, stage)
	}
	return r, failed
}

// stage is one rate; behind the last one comes the burst, on the same programs.
func (c Config) stage(ctx context.Context, r *Report, rate float64, last bool, tell func(format string, args ...any)) (_ Stage, err error) {
	step, err := c.calibrate(ctx, rate, tell)
	if err != nil {
		return Stage{}, err
	}
	tell("starting the programs for %.0f tokens a second", rate)
	m, err := begin(ctx, c.rig(rate, step))
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return Stage{}, err
	}
	stage := Stage{Rate: rate, Device: device(step)}
	ways := m.fleet.ways()
	turns := make([]turns, len(ways))
	tell("first tokens, idle: %d on each way", c.Pairs)
	idle, err := m.idle(ctx, c, ways)
	if err != nil {
		return Stage{}, err
	}
	var failed error
	for round := range c.Rounds {
		for k := range ways {
			w := (round + k) % len(ways) // none is always the first
			tell("%.0f tokens a second, round %d of %d, through %s", rate, round+1, c.Rounds, ways[w].name)
			turn, err := m.turn(ctx, ways[w], c.Streams, c.size(rate, c.Duration))
			if err := errors.Join(err, ctx.Err()); err != nil {
				return Stage{}, err
			}
			failed = errors.Join(failed, whole(ways[w].name, &turn.streams, c.Streams, c.size(rate, c.Duration).Output))
			turns[w] = append(turns[w], turn)
		}
	}
	for w := range ways {
		stage.Ways = append(stage.Ways, turns[w].sum(ways[w].name, idle[w].Summary()))
	}
	if last {
		failed = errors.Join(failed, m.burst(ctx, c, r, tell))
	}
	return stage, errors.Join(failed, ctx.Err())
}

// burst runs many streams at once through the scheduler.
func (m *measurement) burst(ctx context.Context, c Config, r *Report, tell func(format string, args ...any)) (err error) {
	tell("%d streams at once", c.Burst)
	r.Burst, err = m.streams(ctx, &m.fleet.scheduler, c.Burst, load.Size{Prompt: c.Prompt, Output: c.BurstTokens})
	if err != nil {
		return err
	}
	if r.SchedulerRSS, err = m.fleet.scheduler.program.Memory(); err != nil {
		return err
	}
	return whole("burst", &r.Burst, c.Burst, c.BurstTokens)
}

// whole counts: every stream has all its tokens.
func whole(what string, of *load.Report, streams, output int) error {
	if want := uint64(streams) * uint64(output); of.Failed > 0 || of.Tokens != want {
		return fmt.Errorf("%w: %s: %d calls failed, %d of %d tokens arrived%s", ErrFailed, what, of.Failed, of.Tokens, want, example(of))
	}
	return nil
}

func example(of *load.Report) string {
	if len(of.Errors) == 0 {
		return ""
	}
	e := of.Errors[0]
	return fmt.Sprintf("; %d x %s %s: %s", e.Count, e.Code, e.Reason, e.Example)
}
