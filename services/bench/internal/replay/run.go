package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/services/bench/internal/proc"
)

// Errors of a run. The report is complete with each of them.
var (
	// ErrFailed is returned if calls failed.
	ErrFailed = errors.New("not every call succeeded")
	// ErrSaturated is returned if the processors had no idle time or calls started late.
	ErrSaturated = errors.New("the machine was too busy for these times to say anything: stop other programs, or lower --speed")
)

// Run replays a trace once for each row. The report is complete if the error is nil, ErrFailed or
// ErrSaturated.
func Run(ctx context.Context, c Config, requests []Request, progress func(format string, args ...any)) (*Report, error) {
	if err := errors.Join(c.Validate(), c.check(requests)); err != nil {
		return nil, err
	}
	report := newReport(&c, requests)
	for _, r := range rows {
		if !slices.Contains(c.Rows, r.name) {
			continue
		}
		result, err := c.measure(ctx, r, requests, func(done int) { progress("%s: %d of %d calls", r.name, done, len(requests)) })
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
func (c *Config) measure(ctx context.Context, r row, requests []Request, progress func(done int)) (_ *Result, err error) {
	kv := c.cacheTokens()
	fleet, err := proc.StartFleet(ctx, proc.FleetConfig{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: c.Workers, Device: c.device(requests), KVTokens: uint64(kv),
		Context: uint32(kv), Sequences: uint32(c.Sequences), WorkerFlags: append(c.workerFlags(), quiet...), SchedulerFlags: quiet,
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	p := &player{scale: c.Scale}
	asked := fleet.Workers
	if r.schedulers > 0 {
		for range r.schedulers {
			if _, err := fleet.Schedule(ctx); err != nil {
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
	p.play(ctx, all, progress)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	use, err := u.since()
	if err != nil {
		return nil, err
	}
	return p.result(r, use), nil
}

// usage is the processor time since a moment.
type usage struct {
	began                    time.Time
	busy                     proc.Busy
	fleet                    *proc.Fleet
	schedulers, workers, own time.Duration
}

func watch(fleet *proc.Fleet) (u usage, err error) {
	u = usage{began: time.Now(), busy: proc.WatchBusy(), fleet: fleet, own: proc.OwnCPU()}
	if u.schedulers, err = proc.CPUOf(fleet.Schedulers...); err != nil {
		return u, err
	}
	u.workers, err = proc.CPUOf(fleet.Workers...)
	return u, err
}

// since returns the processor time since u.
func (u usage) since() (Use, error) {
	end, err := watch(u.fleet)
	span := end.began.Sub(u.began).Seconds()
	return Use{
		Seconds: span, Busy: u.busy.Share(),
		Schedulers: (end.schedulers - u.schedulers).Seconds() / span, Workers: (end.workers - u.workers).Seconds() / span,
		Own: (end.own - u.own).Seconds() / span,
	}, err
}
