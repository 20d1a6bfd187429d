package relaybench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// ErrFailed says that calls failed or tokens were lost.
var ErrFailed = errors.New("not every stream came through whole")

// Run measures. The report is complete when the error is nil or ErrFailed.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (_ *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	step, err := calibrate(ctx, c, tell)
	if err != nil {
		return nil, err
	}
	r := &Report{Machine: machine.Look(), Device: device(step), Connections: c.Connections}
	tell("starting worker and scheduler")
	m, err := begin(ctx, c, step)
	defer func() { err = errors.Join(err, m.fleet.stop()) }()
	if err != nil {
		return nil, err
	}
	tell("first tokens, idle: %d pairs", c.Pairs)
	if _, err := m.pairs(ctx, warmUp, nil); err != nil {
		return nil, err
	}
	if r.Idle, err = m.pairs(ctx, c.Pairs, nil); err != nil {
		return nil, err
	}
	tell("%d streams of %d tokens", c.Streams, c.size().Output)
	if err := m.steady(ctx, r); err != nil {
		return nil, err
	}
	tell("%d streams at once", c.Burst)
	if r.Burst, err = m.streams(ctx, c.Burst, load.Size{Prompt: c.Prompt, Output: c.BurstTokens}); err != nil {
		return nil, err
	}
	if r.SchedulerRSS, err = m.fleet.scheduler.program.Memory(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = r.check(&c)
	return r, err
}

// check counts: every stream has all its tokens.
func (r *Report) check(c *Config) error {
	for _, stage := range []struct {
		name string
		of   *load.Report
		want uint64
	}{
		{"steady streams", &r.Steady, uint64(c.Streams) * uint64(c.size().Output)},
		{"burst", &r.Burst, uint64(c.Burst) * uint64(c.BurstTokens)},
	} {
		if stage.of.Failed > 0 || stage.of.Tokens != stage.want {
			return fmt.Errorf("%w: %s: %d calls failed, %d of %d tokens arrived", ErrFailed, stage.name, stage.of.Failed,
				stage.of.Tokens, stage.want)
		}
	}
	return nil
}

// measurement is a run in progress.
type measurement struct {
	Config
	fleet *fleet
	maker load.Maker
}

// begin starts the programs. The caller stops the fleet, also after an error.
func begin(ctx context.Context, c Config, step time.Duration) (*measurement, error) {
	f, err := start(ctx, &c, step)
	return &measurement{Config: c, fleet: f, maker: load.Maker{
		Model: f.target.Model, Vocabulary: f.target.Vocabulary, IDsOnly: !f.target.Tokenizer, Seed: c.Seed,
	}}, err
}

// warmUp is how many pairs are made before any is counted.
const warmUp = 20

// pairs takes the times of n first tokens on each way, in turn, one at a time. It ends early when done is closed.
func (m *measurement) pairs(ctx context.Context, n int, done <-chan struct{}) (FirstToken, error) {
	var worker, scheduler stats.Histogram
	ways := []struct {
		side *side
		to   *stats.Histogram
	}{{&m.fleet.worker, &worker}, {&m.fleet.scheduler, &scheduler}}
	for i := range n {
		select {
		case <-done:
			return firstToken(&worker, &scheduler), nil
		default:
		}
		for k := range ways {
			way := ways[(i+k)%len(ways)] // neither is always the first
			in := m.maker.Request(uint64(i), load.Size{Prompt: m.Prompt, Output: 1})
			out := load.Call(ctx, way.side.conns[0], in, time.Now(), 0, load.Observer{}, nil)
			if out.Tokens != 1 {
				return FirstToken{}, fmt.Errorf("%w: first token %d: %d tokens, %v %s", ErrFailed, i, out.Tokens, out.Code, out.Message)
			}
			way.to.Add(out.FirstToken)
		}
	}
	return firstToken(&worker, &scheduler), nil
}

// streams runs n streams at once through the scheduler.
func (m *measurement) streams(ctx context.Context, n int, size load.Size) (load.Report, error) {
	to := load.NewRecorder(nil)
	g := load.Generator{Conns: m.fleet.scheduler.conns, Maker: m.maker, To: to}
	g.Closed(ctx, n, size, 0, uint64(n))
	return to.Report()
}

// steady takes processor time while the streams run, and first tokens beside them.
func (m *measurement) steady(ctx context.Context, r *Report) error {
	schedulerBefore, err := m.fleet.scheduler.program.CPU()
	if err != nil {
		return err
	}
	workerBefore, err := m.fleet.worker.program.CPU()
	if err != nil {
		return err
	}
	done, probed := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		r.Busy, err = m.pairs(ctx, m.Pairs, done)
		probed <- err
	}()
	r.Steady, err = m.streams(ctx, m.Streams, m.size())
	close(done)
	if err := errors.Join(err, <-probed); err != nil {
		return err
	}
	schedulerAfter, err := m.fleet.scheduler.program.CPU()
	if err != nil {
		return err
	}
	workerAfter, err := m.fleet.worker.program.CPU()
	if err != nil {
		return err
	}
	r.RelayedTokens = r.Steady.Tokens + r.Busy.Scheduler.Count
	r.SchedulerCPU = (schedulerAfter - schedulerBefore).Seconds()
	r.WorkerCPU = (workerAfter - workerBefore).Seconds()
	r.CPUPerToken = 1e6 * r.SchedulerCPU / float64(max(r.RelayedTokens, 1))
	return nil
}
