package idlebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/simfleet"
)

// ErrWorkers says that a scheduler did not know the workers that it was to follow.
var ErrWorkers = errors.New("the scheduler does not follow all workers")

// knownTimeout is a hang guard.
const knownTimeout = time.Minute

// Run measures.
func Run(ctx context.Context, c Config, tell func(format string, args ...any)) (_ *Report, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	report := &Report{Machine: machine.Look()}
	tell("starting %d workers", c.largest())
	fleet, err := simfleet.Start(ctx, simfleet.Config{
		Scheduler: c.Scheduler, Worker: c.Worker, Workers: c.largest(), Device: "sim", KVTokens: 4096, Context: 4096, Sequences: 16,
	})
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	if err != nil {
		return nil, err
	}
	if report.WorkerRSS, err = fleet.Workers[0].Memory(); err != nil {
		return nil, err
	}
	for _, n := range c.Sizes {
		tell("following %d workers for %v", n, c.Duration)
		line, err := c.follow(ctx, fleet, n)
		if err != nil {
			return nil, fmt.Errorf("%d workers: %w", n, err)
		}
		report.Lines = append(report.Lines, *line)
	}
	return report, nil
}

// follow is one size.
func (c *Config) follow(ctx context.Context, fleet *simfleet.Fleet, n int) (_ *Line, err error) {
	s, err := fleet.Schedule(ctx, "", n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, fleet.Retire()) }()
	if err := s.Wait(ctx, knownTimeout, func(ctx context.Context) error { return following(ctx, s, n) }); err != nil {
		return nil, err
	}
	if err := pause(ctx, c.Settle); err != nil {
		return nil, err
	}
	busy, began := machine.WatchBusy(), time.Now()
	before, err := simfleet.CPU(s)
	if err != nil {
		return nil, err
	}
	workersBefore, err := simfleet.CPU(fleet.Workers[:n]...)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, c.Duration); err != nil {
		return nil, err
	}
	after, err := simfleet.CPU(s)
	if err != nil {
		return nil, err
	}
	span := time.Since(began).Seconds()
	workersAfter, err := simfleet.CPU(fleet.Workers[:n]...)
	if err != nil {
		return nil, err
	}
	line := &Line{
		Workers: n, Seconds: span, Cores: (after - before).Seconds() / span, Busy: busy.Share(),
		WorkerCores: (workersAfter - workersBefore).Seconds() / span / float64(n),
	}
	line.PerWorker = 1e6 * line.Cores / float64(n)
	if line.RSS, err = s.Memory(); err != nil {
		return nil, err
	}
	return line, following(ctx, s, n)
}

// following reports nil where the scheduler's health streams to its n workers are all up and the model is ready on each.
func following(ctx context.Context, s *simfleet.Program, n int) error {
	ctx, cancel := context.WithCancel(ctx) // the first message says enough
	defer cancel()
	stream, err := pb.NewFleetServiceClient(s.Conn).WatchFleet(ctx, &pb.WatchFleetRequest{})
	if err != nil {
		return err
	}
	fleet, err := stream.Recv()
	if err != nil {
		return err
	}
	up := 0
	for _, w := range fleet.GetWorkers() {
		if w.GetConnected() && len(w.GetReport().GetModels()) == 1 {
			up++
		}
	}
	if up != n {
		return fmt.Errorf("%w: %d of %d", ErrWorkers, up, n)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
