package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/millrace/millrace/services/bench/internal/ceiling"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/scrape"
)

// refresh is how often the line of a running load is renewed.
const refresh = 500 * time.Millisecond

func (r *loadRun) run(ctx context.Context) (err error) {
	report := &loadReport{Machine: machine.Look(), Target: r.loadFlags.target, histogram: !r.noHistogram}
	if err := r.find(ctx); err != nil {
		return fmt.Errorf("target %s: %w", r.loadFlags.target, err)
	}
	r.maker.Model, r.maker.Vocabulary = r.target.Model, r.target.Vocabulary
	r.maker.IDsOnly = r.idsOnly || !r.target.Tokenizer
	report.Model, report.Mode = r.target.Model, r.mode()
	size := load.Size{Prompt: r.promptTokens, Output: r.maxTokens}
	row := r.row()
	if r.floors != nil {
		if *r.floors, err = r.floors.Under(row); err != nil {
			return fmt.Errorf("%w: --floors: %w", ErrUsage, err)
		}
	}
	if r.ceilingTime > 0 {
		r.line.Tell("measuring the generator itself")
		report.Ceiling, err = ceiling.Measure(ctx, ceiling.Config{
			Connections: r.connections, Concurrency: r.concurrency, Size: size, Maker: r.maker, Duration: r.ceilingTime,
		}, r.logger())
		if err != nil {
			return err
		}
	}
	if r.warmUp > 0 {
		r.line.Tell("warming up: %d calls", r.warmUp)
		warm := load.Generator{Conns: r.conns, Maker: r.maker, Timeout: r.timeout, To: load.NewRecorder(nil)}
		warm.Closed(ctx, min(r.warmUp, r.concurrency), size, 0, uint64(r.warmUp))
	}
	to, closeCSV, err := r.recorder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeCSV()) }()
	joined := load.NewRecorder(nil)
	if report.Idle, err = r.send(ctx, to, joined, size); err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	r.line.Clear()
	if r.joiners.prompt > 0 {
		join, _ := joined.Report() // it writes no lines
		report.Join = &join
	}
	if report.Report, err = to.Report(); err != nil {
		return fmt.Errorf("--csv %s: %w", r.csv, err)
	}
	if r.of != nil {
		r.of.Share = report.TokensPerSecond / r.of.Generated
		report.Engine = r.of
	}
	report.recorder, report.GeneratorLimited = to, ceiling.Limits(report.MessagesPerSecond, report.Ceiling)
	report.Floors = judge(r.floors, func(of, metric string) (float64, bool) {
		value, known := report.figures()[metric]
		return value, known && of == row
	})
	if err := r.print(report); err != nil {
		return err
	}
	if report.OK == 0 {
		return errNothingOK
	}
	return report.Floors.Err()
}

// findTimeout bounds the wait for a server to say what it serves.
const findTimeout = 10 * time.Second

func (r *loadRun) find(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	r.target, err = load.FindTarget(ctx, r.conns[0], r.model)
	return err
}

func (r *loadRun) mode() string {
	switch {
	case r.trace != nil:
		return fmt.Sprintf("open loop, trace of %d requests at speed %g, %d of them shortened to %d tokens", len(r.trace),
			r.speed, load.Shortened(r.trace, r.target.Context), r.target.Context)
	case r.rate > 0:
		return fmt.Sprintf("open loop, %g calls/s, Poisson with seed %d", r.rate, r.seed)
	default:
		return fmt.Sprintf("closed loop, %d calls at once over %d connection(s)", r.concurrency, r.connections)
	}
}

// recorder makes the recorder; closeCSV closes its file, if there is one.
func (r *loadRun) recorder() (to *load.Recorder, closeCSV func() error, err error) {
	if r.csv == "" {
		return load.NewRecorder(nil), func() error { return nil }, nil
	}
	f, err := os.Create(r.csv)
	if err != nil {
		return nil, nil, fmt.Errorf("--csv: %w", err)
	}
	return load.NewRecorder(io.Writer(f)), f.Close, nil
}

// send makes the calls, with a line about them meanwhile, others that join them, and a look at the device.
func (r *loadRun) send(ctx context.Context, to, joined *load.Recorder, size load.Size) (idle *scrape.Idle, err error) {
	g := load.Generator{Conns: r.conns, Maker: r.maker, Timeout: r.timeout, To: to}
	done := make(chan struct{})
	joining, leave := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { r.follow(to, done) })
	beside.Go(func() { r.joiners.run(joining, r.conns, r.maker, r.timeout, joined) })
	if r.metrics != "" {
		beside.Go(func() {
			var seen scrape.Idle
			if seen, err = scrape.Watch(ctx, r.metrics, done); err == nil && seen.Seconds > 0 { // none: the run was too short for two looks
				idle = &seen
			}
		})
	}
	switch {
	case r.trace != nil:
		g.Open(ctx, load.Replay(r.trace, r.target.Context))
	case r.rate > 0:
		g.Open(ctx, load.Poisson(r.rate, size, r.seed, r.duration, r.requests))
	default:
		g.Closed(ctx, r.concurrency, size, r.duration, uint64(r.requests))
	}
	close(done)
	leave()
	beside.Wait()
	return idle, err
}

// follow renews the line until done is closed.
func (r *loadRun) follow(to *load.Recorder, done <-chan struct{}) {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	begin, last := time.Now(), load.Live{}
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		now := to.Live()
		r.line.Update("%5.1f s  %d done, %d running, %d failed  %.0f tokens/s", time.Since(begin).Seconds(), now.Finished,
			now.Running, now.Failed, float64(now.Tokens-last.Tokens)/refresh.Seconds())
		last = now
	}
}
