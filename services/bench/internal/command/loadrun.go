package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	bench "github.com/millrace/millrace/services/bench/internal/engine"
	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/replay"
)

// refresh is the interval of the status line.
const refresh = 500 * time.Millisecond

func (r *loadRun) run(ctx context.Context) (err error) {
	report := &loadReport{Machine: proc.ThisMachine(), Target: r.loadFlags.target, histogram: !r.noHistogram}
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
		r.line.Step("measuring the generator itself")
		report.Ceiling, err = load.MeasureCeiling(ctx, load.CeilingConfig{
			Connections: r.connections, Concurrency: r.concurrency, Size: size, Maker: r.maker, Duration: r.ceilingTime,
		}, r.logger())
		if err != nil {
			return err
		}
	}
	if r.warmUp > 0 {
		r.line.Step("warming up: %d calls", r.warmUp)
		warm := load.Generator{Conns: r.conns, Maker: r.maker, Timeout: r.timeout, To: load.NewRecorder(nil)}
		warm.Closed(ctx, min(r.warmUp, r.concurrency), size, 0, uint64(r.warmUp))
	}
	recorder, closeCSV, err := r.recorder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeCSV()) }()
	joined := load.NewRecorder(nil)
	if report.Idle, err = r.send(ctx, recorder, joined, size); err != nil {
		return fmt.Errorf("--metrics: %w", err)
	}
	r.line.Clear()
	if r.joiners.prompt > 0 {
		join, _ := joined.Report() // without CSV it returns no error
		report.Join = &join
	}
	if report.Report, err = recorder.Report(); err != nil {
		return fmt.Errorf("--csv %s: %w", r.csv, err)
	}
	if r.alone != nil {
		r.alone.Share = report.TokensPerSecond / r.alone.Generated
		report.Engine = r.alone
	}
	report.recorder, report.GeneratorLimited = recorder, load.GeneratorLimited(report.MessagesPerSecond, report.Ceiling)
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

// findTimeout bounds the wait for the list of a server's models.
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
			r.speed, replay.CountCut(r.trace, r.target.Context), r.target.Context)
	case r.rate > 0:
		return fmt.Sprintf("open loop, %g calls/s, Poisson with seed %d", r.rate, r.seed)
	default:
		return fmt.Sprintf("closed loop, %d calls at once over %d connection(s)", r.concurrency, r.connections)
	}
}

// recorder returns the recorder. closeCSV closes its file, if it has one.
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

// send makes the calls. Meanwhile it updates the status line, makes the calls of --join and
// watches the device.
func (r *loadRun) send(ctx context.Context, recorder, joined *load.Recorder, size load.Size) (idle *load.Idle, err error) {
	g := load.Generator{Conns: r.conns, Maker: r.maker, Timeout: r.timeout, To: recorder}
	done := make(chan struct{})
	joining, leave := context.WithCancel(ctx)
	var background sync.WaitGroup
	background.Go(func() { r.follow(recorder, done) })
	background.Go(func() { r.joiners.run(joining, r.conns, r.maker, r.timeout, joined) })
	if r.metrics != "" {
		background.Go(func() {
			var watched load.Idle
			if watched, err = load.WatchIdle(ctx, r.metrics, done); err == nil && watched.Seconds > 0 { // 0: the run was too short for two scrapes
				idle = &watched
			}
		})
	}
	switch {
	case r.trace != nil:
		g.Open(ctx, replay.Arrivals(r.trace, r.target.Context))
	case r.rate > 0:
		g.Open(ctx, load.Poisson(r.rate, size, r.seed, r.duration, r.requests))
	default:
		g.Closed(ctx, r.concurrency, size, r.duration, uint64(r.requests))
	}
	close(done)
	leave()
	background.Wait()
	return idle, err
}

// follow updates the status line until done is closed.
func (r *loadRun) follow(recorder *load.Recorder, done <-chan struct{}) {
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	begin, last := time.Now(), load.Live{}
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		live := recorder.Live()
		r.line.Update("%5.1f s  %d done, %d running, %d failed  %.0f tokens/s", time.Since(begin).Seconds(), live.Finished,
			live.Running, live.Failed, float64(live.Tokens-last.Tokens)/refresh.Seconds())
		last = live
	}
}

// row returns the row of this load in floors: MODEL/MIX/alone, or
// MODEL/MIX/joined-by-PROMPTxPERIOD.
func (r *loadRun) row() string {
	company := "alone"
	if r.joiners.prompt > 0 {
		company = "joined-by-" + r.join
	}
	mix := bench.Mix{Sequences: r.concurrency, Prompt: r.promptTokens, Tokens: r.maxTokens}
	return fmt.Sprintf("%s/%s/%s", r.target.Model, mix, company)
}

// figures returns the metrics that floors may bound.
func (r *loadReport) figures() map[string]float64 {
	out := map[string]float64{
		"tokens": r.TokensPerSecond, "first_token_p50_ms": r.TTFT.P50, "inter_token_p50_ms": r.InterToken.P50,
		"inter_token_p99_ms": r.InterToken.P99, "failed": float64(r.Failed),
	}
	if r.Engine != nil {
		out["engine_share"] = r.Engine.Share
	}
	if r.Idle != nil {
		out["idle_share"] = r.Idle.Share
	}
	return out
}
