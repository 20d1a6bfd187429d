package enginebench

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
	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/roof"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

// besideShare is the part of the roof time that reading is measured for beside each repeat.
const besideShare = 5

// run is a run in progress.
type run struct {
	cfg    Config
	device engine.Device
	file   *gguf.File
	spec   *arch.Model
	kv     engine.Type
	// stepTokens is how many tokens a step has at most, as in a worker with its defaults.
	stepTokens int
	tell       func(format string, args ...any)
	report     Report
	mixTokens  [][]int32 // of each mix, what Generate gives for its sequence 0
}

// Run measures a device, which it does not close. tell gets lines about what is going on. When the error is ErrTooFast,
// ErrTokens or ErrMemory the report is complete and void; otherwise it is nil with an error.
func Run(ctx context.Context, device engine.Device, cfg Config, tell func(format string, args ...any), logger hclog.Logger) (_ *Report, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Batches = slices.Compact(slices.Sorted(slices.Values(cfg.Batches)))
	r := &run{cfg: cfg, device: device, tell: tell, report: Report{
		Machine: machine.Look(), Prompt: cfg.Prompt, Tokens: cfg.Tokens, Repeat: cfg.Repeat, Depth: cfg.Depth,
	}}
	stolen := machine.WatchStolen()
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
		Bytes: r.spec.Bytes,
	}
	return nil
}

// measure plays every batch. tokensErr says that tokens are not those wanted.
func (r *run) measure(ctx context.Context, want []int32) (tokensErr, err error) {
	m, err := gauge.Load(ctx, r.device, r.file, r.spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	before, err := r.roofs("before")
	if err != nil {
		return nil, err
	}
	r.report.Digest = gauge.Digest(want)
	var taken []figures
	if len(r.cfg.Batches) > 0 {
		if taken, tokensErr, err = r.batches(ctx, m, want); err != nil {
			return nil, err
		}
	}
	var mixed []mixed
	for i := range r.cfg.Mixes {
		of, wrong, err := r.mix(ctx, m, i)
		if err != nil {
			return nil, err
		}
		mixed, tokensErr = append(mixed, of), errors.Join(tokensErr, wrong)
	}
	after, err := r.roofs("after")
	if err != nil {
		return nil, err
	}
	r.sumUp(taken, mixed, before, after)
	return tokensErr, nil
}

// batches plays every batch on one runner.
func (r *run) batches(ctx context.Context, m engine.Model, want []int32) (taken []figures, tokensErr, err error) {
	cfg := gauge.Config{
		Prompt: r.cfg.Prompt, Tokens: r.cfg.Tokens, Batch: slices.Max(r.cfg.Batches), Vocabulary: r.spec.Desc.Vocab,
		Seed: r.cfg.Seed, KVType: r.kv, Depth: r.cfg.Depth, StepTokens: r.stepTokens,
	}
	runner, err := m.NewRunner(cfg.Runner())
	if err != nil {
		return nil, nil, fmt.Errorf("batch of %d: %w", cfg.Batch, err)
	}
	defer func() { err = errors.Join(err, runner.Close()) }()
	g := gauge.New(cfg, runner)
	r.tell("warming up")
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
		var wrong error // of the first play that gave other tokens
		times := 0      // that one did
		for i := range r.cfg.Repeat {
			r.tell("batch %d: %d of %d", size, i+1, r.cfg.Repeat)
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
		taken = append(taken, b)
	}
	return taken, tokensErr, nil
}

// sumUp puts what was taken into the report, beside the larger of the roofs.
func (r *run) sumUp(taken []figures, mixes []mixed, before, after *roof.Roofs) {
	var used roof.Roofs
	if before != nil {
		used = before.Max(*after)
		r.report.Roofs = &RoofTable{Before: ratesOf(*before), After: ratesOf(*after), Used: ratesOf(used)}
		var reads []float64
		for _, b := range taken {
			reads = append(reads, b.read...)
		}
		for _, m := range mixes {
			reads = append(reads, m.read...)
		}
		r.report.Roofs.Beside = stats.SpreadOf(reads)
	}
	work, cache := roof.WorkOf(r.spec), machine.CacheBytes()
	if r.report.Device.Kind == "cuda" {
		work = work.OnGPU()
	}
	for _, class := range []string{"prefill", "decode"} {
		for _, b := range taken {
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

// figures are what was taken at one batch size.
type figures struct {
	size            int
	prefill, decode []gauge.Phase
	read            []float64 // roof of reading beside each repeat, bytes a second; 0 = not known
}

// line sums the repeats of one figure up. They all did the same work. read is the roof of reading beside each of them:
// what a machine shares with others differs from second to second, so each repeat is held against its own, and the
// median of these shares is told. What fits the processor's largest cache, of so many bytes, may be read faster than any
// memory: it has no share of the read roof.
func line(class string, size int, phases []gauge.Phase, read []float64, work roof.Work, roofs roof.Roofs, cache uint64) Line {
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

// roofs measures the device, or gives nil where it cannot.
func (r *run) roofs(when string) (*roof.Roofs, error) {
	meter, ok := r.device.(engine.Meter)
	if !ok {
		return nil, nil
	}
	r.tell("measuring the roofs %s", when)
	roofs, err := roof.Measure(meter, r.cfg.RoofTime)
	return &roofs, err
}

// readRoof is the rate of reading now, in bytes a second; 0 where the device does not measure itself.
func (r *run) readRoof() (float64, error) {
	meter, ok := r.device.(engine.Meter)
	if !ok {
		return 0, nil
	}
	return roof.MeasureRead(meter, max(r.cfg.RoofTime/besideShare, time.Millisecond))
}

func digestText(d engine.Digest) string { return hex.EncodeToString(d[:]) }
