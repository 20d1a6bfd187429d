package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// readShare divides the roof time for the measurements of reading around each repeat.
const readShare = 5

// run is a run in progress.
type run struct {
	cfg    Config
	device engine.Device
	file   *gguf.File
	spec   *arch.Model
	kv     engine.Type
	// stepTokens is the maximum of tokens in a step, the default of a worker.
	stepTokens int
	progress   func(format string, args ...any)
	report     Report
	mixTokens  [][]int32 // of each mix: the tokens of sequence 0 by generate.Run
}

// Run measures a device, which it does not close. progress gets lines for a user. If the error is
// ErrTooFast, ErrTokens or ErrMemory, the report is complete and void; with any other error it is
// nil.
func Run(ctx context.Context, device engine.Device, cfg Config, progress func(format string, args ...any), logger hclog.Logger) (_ *Report, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Batches = slices.Compact(slices.Sorted(slices.Values(cfg.Batches)))
	r := &run{cfg: cfg, device: device, progress: progress, report: Report{
		Machine: proc.ThisMachine(), Prompt: cfg.Prompt, Tokens: cfg.Tokens, Repeat: cfg.Repeat, Depth: cfg.Depth,
	}}
	stolen := proc.WatchStolen()
	if r.file, err = gguf.Open(cfg.Model); err != nil {
		return nil, err
	}
	defer func() { _ = r.file.Close() }() // opened for reading only
	if r.spec, err = arch.Parse(r.file); err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Model, err)
	}
	if err := r.describe(); err != nil {
		return nil, err
	}
	want, err := r.load(ctx, logger)
	if err != nil {
		return nil, err
	}
	tokensErr, err := r.measure(ctx, want)
	if err != nil {
		return nil, err
	}
	r.report.Stolen = stolen.Share()
	return &r.report, errors.Join(tokensErr, r.report.check())
}

func (r *run) describe() error {
	info, err := r.device.Info()
	if err != nil {
		return err
	}
	r.kv, r.stepTokens = r.cfg.CacheType(info), model.DefaultBatchedTokens(info)
	r.report.Device = Device{
		Kind: info.Kind, Name: info.Name, Path: info.Path, Threads: info.SMCount, Devices: info.Devices,
		KV: CacheName(r.kv), Class: model.ClassID(info, r.kv),
	}
	r.report.Model = Model{
		File: r.cfg.Model, Architecture: r.spec.Architecture, Type: r.spec.Quantization, Parameters: r.spec.Parameters,
		Bytes: r.spec.Bytes, LoadedShare: r.cfg.LoadedShare,
	}
	return nil
}

// measure plays every batch. tokensErr is set if tokens differ.
func (r *run) measure(ctx context.Context, want []int32) (tokensErr, err error) {
	m, err := bindModel(ctx, r.device, r.file, r.spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	before, err := r.roofs("before")
	if err != nil {
		return nil, err
	}
	r.report.Digest = digestTokens(want)
	var results []figures
	if len(r.cfg.Batches) > 0 {
		if results, tokensErr, err = r.batches(ctx, m, want); err != nil {
			return nil, err
		}
	}
	var mixed []mixed
	for i := range r.cfg.Mixes {
		one, wrong, err := r.mix(ctx, m, i)
		if err != nil {
			return nil, err
		}
		mixed, tokensErr = append(mixed, one), errors.Join(tokensErr, wrong)
	}
	after, err := r.roofs("after")
	if err != nil {
		return nil, err
	}
	r.summarise(results, mixed, before, after)
	return tokensErr, nil
}

// batches plays every batch on one runner.
func (r *run) batches(ctx context.Context, m engine.Model, want []int32) (results []figures, tokensErr, err error) {
	cfg := playConfig{
		Prompt: r.cfg.Prompt, Tokens: r.cfg.Tokens, Batch: slices.Max(r.cfg.Batches), Vocabulary: r.spec.Desc.Vocab,
		Seed: r.cfg.Seed, KVType: r.kv, Depth: r.cfg.Depth, StepTokens: r.stepTokens,
	}
	runner, err := m.NewRunner(cfg.Runner())
	if err != nil {
		return nil, nil, fmt.Errorf("batch of %d: %w", cfg.Batch, err)
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	g := newBatchPlayer(cfg, runner)
	r.progress("warming up")
	if _, _, _, err := g.Play(ctx, 1); err != nil {
		return nil, nil, err
	}
	beside, err := r.readRoof()
	if err != nil {
		return nil, nil, err
	}
	known := answers{0: want}
	for _, size := range r.cfg.Batches {
		b := figures{size: size}
		var wrong error // of the first play with other tokens
		times := 0      // plays with other tokens
		for i := range r.cfg.Repeat {
			r.progress("batch %d: %d of %d", size, i+1, r.cfg.Repeat)
			prefill, decode, tokens, err := g.Play(ctx, size)
			if err != nil {
				return nil, nil, fmt.Errorf("batch %d: %w", size, err)
			}
			if err := known.compare(tokens); err != nil {
				times++
				if wrong == nil {
					wrong = err
				}
			}
			earlier := beside
			if beside, err = r.readRoof(); err != nil {
				return nil, nil, err
			}
			b.prefill, b.decode = append(b.prefill, prefill), append(b.decode, decode)
			b.read = append(b.read, max(earlier, beside))
		}
		if wrong != nil {
			tokensErr = errors.Join(tokensErr, fmt.Errorf("%w; so %d of %d times", wrong, times, r.cfg.Repeat))
		}
		results = append(results, b)
	}
	return results, tokensErr, nil
}

// summarise sets the lines of the report, as shares of the larger roofs.
func (r *run) summarise(results []figures, mixes []mixed, before, after *device.Roofs) {
	var used device.Roofs
	if before != nil {
		used = before.Max(*after)
		r.report.Roofs = &RoofTable{Before: ratesOf(*before), After: ratesOf(*after), Used: ratesOf(used)}
		var reads []float64
		for _, b := range results {
			reads = append(reads, b.read...)
		}
		for _, m := range mixes {
			reads = append(reads, m.read...)
		}
		r.report.Roofs.Beside = stats.SpreadOf(reads)
	}
	work, cache := WorkOf(r.spec), proc.CacheBytes()
	if r.report.Device.Kind == "cuda" {
		work = work.OnGPU()
	}
	for _, class := range []string{"prefill", "decode"} {
		for _, b := range results {
			phases := b.prefill
			if class == "decode" {
				phases = b.decode
			}
			r.report.Lines = append(r.report.Lines, line(class, b.size, phases, b.read, work, used, cache))
		}
	}
	for _, m := range mixes {
		r.report.Mixes = append(r.report.Mixes, m.figure(work, used, cache))
	}
}

// figures are the measurements of one batch size.
type figures struct {
	size            int
	prefill, decode []phase
	read            []float64 // roof of reading around each repeat, bytes a second; 0: unknown
}

// line summarises the repeats of one figure, which all did the same work. read is the roof of
// reading around each repeat. The read share is the median of the shares of each repeat's own
// roof, because on a shared machine the memory's rate changes from second to second. Steps that
// fit the processor's largest cache have no read share, because they may be read faster than any
// memory.
func line(class string, size int, phases []phase, read []float64, work Work, roofs device.Roofs, cache uint64) Line {
	rates := make([]float64, len(phases))
	for i, p := range phases {
		rates[i] = float64(p.Positions) / p.Time.Seconds()
	}
	p := phases[0]
	l := Line{Class: class, Batch: size, TokensPerSecond: stats.SpreadOf(rates)}
	took := float64(p.Positions) / l.TokensPerSecond.Median // seconds
	ops := work.Ops(p.Positions, p.Samples)
	l.BytesPerStep = float64(p.Bytes) / float64(p.Steps)
	l.BytesPerSecond = float64(p.Bytes) / took
	if l.BytesPerStep > float64(cache) {
		shares := make([]float64, len(phases))
		for i, p := range phases {
			if read[i] > 0 {
				shares[i] = float64(p.Bytes) / p.Time.Seconds() / read[i]
			}
		}
		l.ReadShare = stats.SpreadOf(shares).Median
	}
	l.OpsPerSecond = ops.Sum() / took
	l.OpsKind = ops.Kind().String()
	l.OpsShare = roofs.Share(ops, took)
	return l
}

// roofs measures the device; nil if it cannot.
func (r *run) roofs(when string) (*device.Roofs, error) {
	meter, ok := r.device.(engine.Meter)
	if !ok {
		return nil, nil
	}
	r.progress("measuring the roofs %s", when)
	roofs, err := device.MeasureRoofs(meter, r.cfg.RoofTime)
	return &roofs, err
}

// readRoof returns the current rate of reading in bytes a second; 0 if the device cannot measure
// itself.
func (r *run) readRoof() (float64, error) {
	meter, ok := r.device.(engine.Meter)
	if !ok {
		return 0, nil
	}
	return device.MeasureRead(meter, max(r.cfg.RoofTime/readShare, time.Millisecond))
}

func digestText(d engine.Digest) string { return hex.EncodeToString(d[:]) }
