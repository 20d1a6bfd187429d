package receivebench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/process"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
)

// Run measures.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (_ *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	report := &Report{Machine: machine.Look(), Config: c}
	tell("starting a worker and a scheduler")
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: 1, Device: "sim", KVTokens: 4096, Context: 256, Sequences: 16,
		Model: c.Model, Memory: c.Memory,
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	scheduler, err := fleet.Schedule(ctx, "", 1)
	if err != nil {
		return nil, err
	}
	for _, of := range []struct {
		name    string
		program *simfleet.Program
		kind    kind
	}{{"worker", fleet.Workers[0], text}, {"worker", fleet.Workers[0], ids}, {"scheduler", scheduler, text}, {"scheduler", scheduler, ids}} {
		tell("%d requests of %d bytes of %s at once to the %s", c.Requests, c.Bytes, of.kind, of.name)
		row, err := c.crowd(ctx, of.program.Address, of.kind, []*simfleet.Program{fleet.Workers[0], scheduler})
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", of.name, of.kind, err)
		}
		row.To = of.name
		report.Rows = append(report.Rows, *row)
	}
	return report, nil
}

// crowd sends one server its requests.
func (c *Config) crowd(ctx context.Context, target string, of kind, programs []*simfleet.Program) (*Row, error) {
	raw, err := of.request(c.Bytes)
	if err != nil {
		return nil, err
	}
	conns, hangUp, err := load.Dial(target, c.Connections+1)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	row := &Row{Kind: string(of), Ends: map[string]int{}}
	alone := &small{conn: conns[c.Connections]}
	measuring, over := context.WithTimeout(ctx, c.Measure)
	alone.run(measuring)
	over()
	if alone.failed > 0 {
		return nil, fmt.Errorf("%w: a small request alone: %s", ErrBroken, alone.first)
	}
	row.Alone = alone.took.Summary()

	watching, enough := context.WithCancel(ctx)
	beside := &small{conn: conns[c.Connections]}
	var others sync.WaitGroup
	others.Go(func() { row.Peak = peak(watching, programs) })
	others.Go(func() { beside.run(watching) })
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for i := range c.Requests {
		all.Go(func() {
			err := send(ctx, conns[i%c.Connections], raw, c.Timeout)
			mu.Lock()
			defer mu.Unlock()
			row.Ends[endOf(err)]++
			if errors.Is(err, errNoStatus) {
				row.Hung++
			}
		})
	}
	all.Wait()
	row.Seconds = time.Since(began).Seconds()
	enough()
	others.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	row.Beside, row.Failed, row.Example = beside.took.Summary(), beside.failed, beside.first
	for _, p := range programs {
		if err := p.Check(); err != nil {
			return nil, err
		}
	}
	return row, nil
}

// peak is the most memory that each program holds until ctx ends, looked at once at least.
func peak(ctx context.Context, programs []*simfleet.Program) []uint64 {
	most := make([]uint64, len(programs))
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		for i, p := range programs {
			if now, err := process.MemoryOf(p.PID()); err == nil { // else it has ended, which Check tells
				most[i] = max(most[i], now)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return most
		}
	}
}
