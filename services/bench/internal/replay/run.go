package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
	"github.com/millrace/millrace/services/bench/internal/trace"
)

// Sentinels of a run, whose report is complete with each of them.
var (
	// ErrFailed: calls failed.
	ErrFailed = errors.New("not every call ended well")
	// ErrSaturated: the processors had no time to spare, or calls left late.
	ErrSaturated = errors.New("the machine was too busy for these times to say anything: close what else runs, or lower --speed")
)

// Run replays a trace once for each row. The report is complete when the error is nil, ErrFailed or ErrSaturated.
func Run(ctx context.Context, c Config, requests []trace.Request, tell func(format string, args ...any)) (*Report, error) {
	if err := errors.Join(c.Validate(), c.check(requests)); err != nil {
		return nil, err
	}
	report := newReport(&c, requests)
	for _, r := range rows {
		if !slices.Contains(c.Rows, r.name) {
			continue
		}
		result, err := c.measure(ctx, r, requests, func(done int) { tell("%s: %d of %d calls", r.name, done, len(requests)) })
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		report.Rows = append(report.Rows, *result)
	}
	report.compare()
	err := report.check()
	return report, err
}

// measure starts the programs of a row, plays the trace and stops them.
func (c *Config) measure(ctx context.Context, r row, requests []trace.Request, tell func(done int)) (_ *Result, err error) {
	kv := c.cacheTokens()
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: c.Workers, Device: c.device(requests), KVTokens: uint64(kv),
		Context: uint32(kv), Sequences: uint32(c.Sequences), Flags: c.flags(),
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	p := &player{scale: c.Scale}
	asked := fleet.Workers
	if r.schedulers > 0 {
		for range r.schedulers {
			if _, err := fleet.Schedule(ctx, "", c.Workers); err != nil {
				return nil, err
			}
		}
		asked = fleet.Schedulers
	} else {
		p.rules = newDispatcher(r.rule, c.Workers, kv)
	}
	for _, program := range asked {
		p.conns = append(p.conns, program.Conn)
	}
	all := jobs(r.requests(requests), c.Scale)
	u, err := watch(fleet)
	if err != nil {
		return nil, err
	}
	p.play(ctx, all, tell)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	use, err := u.since()
	if err != nil {
		return nil, err
	}
	return p.result(r, use), nil
}

// usage is processor time since a moment.
type usage struct {
	began                    time.Time
	busy                     machine.Busy
	fleet                    *simfleet.Fleet
	schedulers, workers, own time.Duration
}

func watch(fleet *simfleet.Fleet) (u usage, err error) {
	u = usage{began: time.Now(), busy: machine.WatchBusy(), fleet: fleet, own: machine.OwnCPU()}
	if u.schedulers, err = simfleet.CPU(fleet.Schedulers...); err != nil {
		return u, err
	}
	u.workers, err = simfleet.CPU(fleet.Workers...)
	return u, err
}

// since is what was used.
func (u usage) since() (Use, error) {
	now, err := watch(u.fleet)
	span := now.began.Sub(u.began).Seconds()
	return Use{
		Seconds: span, Busy: u.busy.Share(),
		Schedulers: (now.schedulers - u.schedulers).Seconds() / span, Workers: (now.workers - u.workers).Seconds() / span,
		Own: (now.own - u.own).Seconds() / span,
	}, err
}
