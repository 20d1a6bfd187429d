package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// Stage of a load.
type Stage int

// Stages, in order.
const (
	Queued Stage = iota + 1
	Reading
	Uploading
	Verifying
	Warming
	Loaded
)

// Progress of a load.
type Progress struct {
	Stage       Stage
	Done, Total uint64        // bytes of this stage
	ETA         time.Duration // until Loaded; 0 = not known
}

// loader loads one model; everything it has allocated is given back if a step fails.
type loader struct {
	cfg      Config
	device   engine.Device
	catalog  *catalog
	name     string
	options  Options
	progress func(Progress)
	logger   hclog.Logger
	leaked   *atomic.Int64 // counts the buffers that the device refuses to free
	swap     *swapSpace
}

// load gives the model, serving. Of a load that fails there is an instance only if the device has refused to take some of
// its memory back: it is out of service and holds that.
func (l *loader) load(ctx context.Context) (_ *Instance, refused int, err error) {
	l.progress(Progress{Stage: Reading})
	file, err := l.catalog.open(l.name)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = file.Close() }() // opened for reading only
	var spec *arch.Model
	err = guarded(l.logger, func() (err error) {
		spec, err = arch.Parse(file)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("model %q: %w", l.name, err)
	}
	inst := &Instance{Name: l.name, ended: make(chan struct{}), stop: func(error) {}}
	inst.closing.Lock()
	defer inst.closing.Unlock()
	if err := guarded(l.logger, func() error { return l.fill(ctx, inst, file, spec) }); err != nil {
		refused, freeErr := inst.release()
		err = errors.Join(err, freeErr)
		if refused == 0 {
			return nil, 0, err
		}
		close(inst.ended) // there was no loop
		inst.fail(err)
		return inst, refused, err
	}
	inst.held.Store(inst.holds.bytes())
	l.progress(Progress{Stage: Loaded})
	return inst, 0, nil
}

// fill takes an instance through all stages.
func (l *loader) fill(ctx context.Context, inst *Instance, file *gguf.File, spec *arch.Model) error {
	if err := l.language(inst, file, spec); err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	info, err := l.device.Info()
	if err != nil {
		return err
	}
	if inst.model, err = l.device.NewModel(spec.Desc); err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	inst.holds.add("weights", &inst.weights, func() error { return inst.model.Close() })
	if err := l.fit(inst, spec, info); err != nil {
		return err
	}
	if err := l.upload(ctx, inst, file, spec); err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	took, err := l.warm(inst)
	if err != nil {
		return fmt.Errorf("model %q: warm up: %w", l.name, err)
	}
	l.serve(inst, took)
	return nil
}

// language reads tokenizer and chat template. A template that cannot be used does not keep the model from serving
// prompts.
func (l *loader) language(inst *Instance, file *gguf.File, spec *arch.Model) (err error) {
	if inst.Tokenizer, err = readTokenizer(file); err != nil {
		return err
	}
	if inst.Tokenizer != nil && inst.Tokenizer.VocabSize() > spec.Desc.Vocab {
		return fmt.Errorf("%w: the tokenizer has %d tokens, the embedding %d", arch.ErrInvalidModel,
			inst.Tokenizer.VocabSize(), spec.Desc.Vocab)
	}
	all, err := readTemplates(file)
	if err != nil {
		return err
	}
	inst.parse(all)
	if inst.Facts, err = describe(file, spec, inst.Tokenizer, all); err != nil {
		return err
	}
	return l.options.check(spec.Desc.Context)
}

// fit decides, before a tensor is read, whether the model fits and how large its cache is.
func (l *loader) fit(inst *Instance, spec *arch.Model, info engine.DeviceInfo) error {
	var weights, staging uint64
	for _, b := range spec.Bindings {
		size, err := l.device.ResidentSize(b.Desc)
		if err != nil {
			return fmt.Errorf("model %q: tensor %q: %w", l.name, b.Tensor.Name, err)
		}
		inst.sizes = append(inst.sizes, size)
		weights += size
		staging = max(staging, b.Bytes())
	}
	kv := DefaultKV(info)
	if l.options.KVType != nil {
		kv = *l.options.KVType
	}
	if l.cfg.MaxBatchedTokens == 0 {
		l.cfg.MaxBatchedTokens = DefaultBatchedTokens(info)
	}
	if l.cfg.StepTarget == 0 {
		l.cfg.StepTarget = DefaultStepTarget(info)
	}
	free := info.BytesFree
	p := planner{
		cfg: l.cfg, options: l.options, made: spec.Desc.Context, kv: kv, free: free - min(free, weights), cost: inst.model.RunnerCost,
	}
	sequences := cmp.Or(int(l.options.MaxSequences), l.cfg.MaxSequences)
	var price engine.RunnerCost
	var err error
	inst.Runner, inst.Context, price, err = p.plan(cmp.Or(sequences, DefaultSequences(info)), sequences != 0)
	if err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	inst.Runner.HostBlocks = l.swap.blocks(inst.Runner.KVBlocks, price.HostBytesPerBlock)
	inst.oneClass = info.OneClass
	if l.cfg.SamplingDefaults && !inst.Facts.Sampling.Empty() {
		inst.Defaults = &inst.Facts.Sampling
	}
	if unapplied := inst.Facts.Sampling.Unapplied; l.cfg.SamplingDefaults && len(unapplied) > 0 {
		l.logger.Warn("not every recommendation for sampling is followed", "model", l.name, "keys", strings.Join(unapplied, "; "))
	}
	inst.ClassID = classID(info, kv, l.options.ActType, inst.Defaults != nil)
	inst.cache = price.KVBytes + price.WorkspaceBytes
	inst.DeviceBytes = weights + inst.cache
	// The staging buffer is gone before the cache is allocated.
	if needed := weights + max(price.KVBytes+price.WorkspaceBytes, staging); needed > free {
		return &FitError{
			Name: l.name, Needed: needed, Free: free, Weights: weights, KV: price.KVBytes,
			Workspace: price.WorkspaceBytes, Staging: staging,
		}
	}
	return nil
}

// warm allocates the cache and runs a step as large as the least that the loop plans, so that the first request finds
// everything in place, and the loop knows how long a step takes before it calls one hung.
func (l *loader) warm(inst *Instance) (took time.Duration, err error) {
	l.progress(Progress{Stage: Warming})
	price, err := inst.model.RunnerCost(inst.Runner) // before the model was sealed it was an upper bound
	if err != nil {
		return 0, err
	}
	if inst.runner, err = inst.model.NewRunner(inst.Runner); err != nil {
		return 0, err
	}
	inst.hostBlock, inst.grain = price.HostBytesPerBlock, price.PrefillGrain
	swapped := l.swap.take(inst.Runner.HostBlocks, price.HostBytesPerBlock)
	inst.holds.add("cache", &inst.cache, func() error {
		if err := inst.runner.Close(); err != nil {
			return err
		}
		l.swap.give(swapped)
		return nil
	})
	inst.cache = price.KVBytes + price.WorkspaceBytes
	inst.DeviceBytes = inst.weights + inst.cache
	n := min(batch.MinChunk, inst.Context, inst.Runner.MaxBatchedTokens)
	blocks := make([]int32, (n+inst.Runner.BlockSize-1)/inst.Runner.BlockSize)
	for i := range blocks {
		blocks[i] = int32(i)
	}
	step := engine.Step{
		PreOps: []engine.PreOp{{SlotGeneration: 1, Params: &engine.SlotParams{
			PromptLength: int32(n), TopP: 1, TypicalP: 1, RepetitionPenalty: 1,
		}}},
		Segments: []engine.Segment{{SlotGeneration: 1, Tokens: make([]int32, n), Blocks: blocks}},
		Samples:  []engine.SampleRow{{TokenIndex: int32(n - 1), SlotGeneration: 1, Position: int32(n)}},
	}
	begin := time.Now()
	if err := inst.runner.Submit(&step); err != nil {
		return 0, err
	}
	result, err := inst.runner.Wait(time.Minute)
	if err == nil && result.Samples[0].Status != engine.RowOK {
		err = fmt.Errorf("%w: %w in the first step: its weights hold numbers that cannot be computed with",
			arch.ErrInvalidModel, batch.ErrBadLogits)
	}
	return time.Since(begin), err
}

// serve starts the step loop; a step has taken so long.
func (l *loader) serve(inst *Instance, took time.Duration) {
	cfg := batch.Config{
		Runner: inst.Runner, Context: inst.Context, LongestStep: took, SharedTarget: l.cfg.StepTarget,
		MaxQueueTime: l.cfg.MaxQueueTime, OneClass: inst.oneClass, BlockBytes: inst.hostBlock, Grain: inst.grain,
	}
	if l.cfg.Observe != nil {
		cfg.Observer = l.cfg.Observe(inst.Name)
	}
	inst.Loop = batch.New(cfg, inst.runner, l.logger.With("model", inst.Name))
	var ctx context.Context
	ctx, inst.stop = context.WithCancelCause(context.Background())
	inst.mu.state, inst.mu.verified, inst.mu.used = Ready, time.Now(), time.Now()
	go func() {
		defer close(inst.ended)
		if err := inst.Loop.Run(ctx); ctx.Err() == nil {
			l.logger.Error("step loop ended", "model", inst.Name, "error", err)
			inst.fail(err)
		}
	}()
}
