package safeguards

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/scrape"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
)

// ErrFailed says that calls failed or tokens were lost.
var ErrFailed = errors.New("not every stream came through whole")

// Run measures. The report is complete when the error is nil.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (_ *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "millrace-safeguards-*")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	list, err := rows(ctx, dir)
	if err != nil {
		return nil, err
	}
	tell("starting the programs of %d rows", len(list))
	rigs := make([]*rig, len(list))
	defer func() { err = errors.Join(err, each(rigs, func(_ int, r *rig) error { return r.fleet.Stop() })) }()
	if err := each(list, func(i int, one row) (err error) {
		if rigs[i], err = c.start(ctx, one); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, r := range rigs { // connections, pools and heaps are made by their first calls
		tell("warming up %s", r.name)
		if _, err := r.turn(ctx, &c, c.Duration/4); err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	turns := make([][]turn, len(rigs))
	for round := range c.Rounds {
		for k := range rigs {
			i := (round + k) % len(rigs) // none is always the first
			tell("round %d of %d, %s", round+1, c.Rounds, rigs[i].name)
			t, err := rigs[i].turn(ctx, &c, c.Duration)
			if err := errors.Join(err, ctx.Err()); err != nil {
				return nil, fmt.Errorf("%s: %w", rigs[i].name, err)
			}
			turns[i] = append(turns[i], t)
		}
	}
	report := &Report{Machine: machine.Look(), Streams: c.Streams, Tokens: c.Tokens, Device: c.device()}
	for i, r := range rigs {
		report.Rows = append(report.Rows, sum(r.name, turns[i], turns[0]))
	}
	return report, nil
}

// each does something with every element at once, and gives all errors.
func each[T any](all []T, do func(int, T) error) error {
	errs := make([]error, len(all))
	var work sync.WaitGroup
	for i, one := range all {
		work.Go(func() { errs[i] = do(i, one) })
	}
	work.Wait()
	return errors.Join(errs...)
}

// rig is the programs of a row, running.
type rig struct {
	row
	fleet     *simfleet.Fleet
	scheduler *simfleet.Program
}

// start starts the programs of a row. The caller stops the fleet, also after an error.
func (c *Config) start(ctx context.Context, one row) (*rig, error) {
	const spare = 64 // tokens: the rest of a last block, and a block more
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: 1, Device: c.device(), Context: uint32(c.Prompt + c.Tokens + 1),
		KVTokens: uint64(c.Streams * (c.Prompt + c.Tokens + spare)), Sequences: uint32(c.Streams),
		Flags: one.worker, SchedulerFlags: one.guard.scheduler, Dial: one.dial, WorkerDial: one.dial,
	})
	r := &rig{row: one, fleet: fleet}
	if err == nil {
		r.scheduler, err = fleet.Schedule(ctx, "", 1)
	}
	return r, err
}

// turn drives the programs for so long, and takes their processor time.
func (r *rig) turn(ctx context.Context, c *Config, duration time.Duration) (t turn, err error) {
	stop := r.read(ctx)
	before, err := r.used()
	if err != nil {
		return t, errors.Join(err, stop())
	}
	to := load.NewRecorder(nil)
	g := load.Generator{
		Conns: []grpc.ClientConnInterface{r.scheduler.Conn}, To: to,
		Maker: load.Maker{Model: simfleet.Model, Vocabulary: simfleet.Vocabulary, IDsOnly: true, Seed: 1},
	}
	g.Closed(ctx, c.Streams, load.Size{Prompt: c.Prompt, Output: c.Tokens}, duration, 0)
	after, usedErr := r.used()
	report, err := to.Report()
	if err := errors.Join(err, usedErr, stop(), ctx.Err()); err != nil {
		return t, err
	}
	if want := report.OK * uint64(c.Tokens); report.Failed > 0 || report.Tokens != want {
		return t, fmt.Errorf("%w: %d calls failed, %d of %d tokens arrived: %v", ErrFailed, report.Failed, report.Tokens, want, report.Errors)
	}
	tokens := float64(report.Tokens)
	return turn{
		scheduler: float64((after.scheduler - before.scheduler).Microseconds()) / tokens,
		worker:    float64((after.worker - before.worker).Microseconds()) / tokens, rate: report.TokensPerSecond,
	}, nil
}

// read reads the pages of measures once a second, as a keen operator's Prometheus does; stop ends it.
func (r *rig) read(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	errs := make([]error, len(r.pages))
	for i, page := range r.pages {
		work.Go(func() {
			for ctx.Err() == nil {
				if _, err := scrape.Sum(ctx, page, "grpc_server_started_total"); err != nil && ctx.Err() == nil {
					errs[i] = err
					return
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	return func() error {
		cancel()
		work.Wait()
		return errors.Join(errs...)
	}
}

// used is the processor time of both programs so far.
func (r *rig) used() (u struct{ scheduler, worker time.Duration }, err error) {
	if u.scheduler, err = r.scheduler.CPU(); err != nil {
		return u, err
	}
	u.worker, err = r.fleet.Workers[0].CPU()
	return u, err
}
