package model

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
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
	ETA         time.Duration // until Loaded; 0 = unknown
}

// loader loads one model. If a stage fails, it frees everything that it allocated.
type loader struct {
	cfg      Config
	device   engine.Device
	catalog  *catalog
	name     string
	options  Options
	progress func(Progress)
	logger   hclog.Logger
	leaked   *atomic.Int64 // number of buffers that the device refuses to free
	swap     *hostSpace
	tier     *hostSpace
}

// load returns the model in service. If the load fails, it returns an instance only if the device
// refuses to free some memory: that instance is out of service and owns the memory.
func (l *loader) load(ctx context.Context) (_ *Instance, refused int, err error) {
	l.progress(Progress{Stage: Reading})
	inst := &Instance{Name: l.name, ended: make(chan struct{}), stop: func(error) {}}
	inst.resources.Lock()
	defer inst.resources.Unlock()
	if err := guarded(l.logger, func() error { return l.fill(ctx, inst) }); err != nil {
		refused, freeErr := inst.release()
		err = errors.Join(err, freeErr)
		if refused == 0 {
			return nil, 0, err
		}
		close(inst.ended) // no loop was started
		inst.fail(err)
		return inst, refused, err
	}
	inst.held.Store(inst.resources.bytes())
	l.progress(Progress{Stage: Loaded})
	return inst, 0, nil
}

// fill takes an instance through all stages.
func (l *loader) fill(ctx context.Context, inst *Instance) error {
	file, err := l.catalog.open(l.name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // opened for reading only
	spec, err := arch.Parse(file)
	if err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	if err := l.describe(inst, file, spec); err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	info, err := l.device.Info()
	if err != nil {
		return err
	}
	if inst.model, err = l.device.NewModel(spec.Desc); err != nil {
		return fmt.Errorf("model %q: %w", l.name, err)
	}
	inst.resources.add("weights", &inst.weights, func() error { return inst.model.Close() })
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

// warm creates the runner and executes its smallest step. So the first request finds everything
// allocated, and the loop knows how long a step takes before it must detect a hang.
func (l *loader) warm(inst *Instance) (took time.Duration, err error) {
	l.progress(Progress{Stage: Warming})
	price, err := inst.model.RunnerCost(inst.Runner) // exact now; before Seal it was an upper bound
	if err != nil {
		return 0, err
	}
	if inst.runner, err = inst.model.NewRunner(inst.Runner); err != nil {
		return 0, err
	}
	inst.hostBlock, inst.hostState, inst.grain = price.HostBytesPerBlock, price.HostBytesPerState, price.PrefillGrain
	inst.states = price.BytesPerState > 0
	inst.hostWindow = price.HostBytesPerWindowBlock
	release := l.reserveHost(inst, price)
	inst.resources.add("cache", &inst.cache, func() error {
		if err := inst.runner.Close(); err != nil {
			return err
		}
		release()
		return nil
	})
	inst.cache = price.KVBytes + price.WorkspaceBytes
	inst.DeviceBytes = inst.weights + inst.cache
	n := min(batch.MinChunk, inst.Context, inst.Runner.MaxBatchedTokens)
	if inst.Facts.WholeTexts {
		n = inst.Context // no chunk bounds the steps of such a model
	}
	begin := time.Now()
	if _, err := inst.execute(inst.firstStep(n, 1)); errors.Is(err, batch.ErrBadLogits) {
		return 0, fmt.Errorf("%w: %w in the first step: its weights hold numbers that cannot be computed with", arch.ErrInvalidModel, err)
	} else if err != nil {
		return 0, err
	}
	took = time.Since(begin)
	if inst.tier.blocks > 0 {
		inst.hostRate, err = inst.measureCopies()
	}
	return took, err
}

// serve starts the step loop. took is the length of the first step.
func (l *loader) serve(inst *Instance, took time.Duration) {
	cfg := batch.Config{
		Runner: inst.Runner, Context: inst.Context, LongestStep: took, SharedTarget: l.cfg.StepTarget,
		MaxQueueTime: l.cfg.MaxQueueTime, OneClass: inst.oneClass, WholeTexts: inst.Facts.WholeTexts,
		BlockBytes: inst.hostBlock, Window: inst.window, WindowBlockBytes: inst.hostWindow, Grain: inst.grain,
		States: inst.states, StateBytes: inst.hostState, HostRate: inst.hostRate,
		Tier: batch.Tier{Blocks: inst.tier.blocks, WindowBlocks: inst.tier.windows, States: inst.tier.states},
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

// guarded runs f and returns a panic as an error. A load that panics then frees its memory like one
// that fails, and other models stay in service. Every goroutine of a load must run under it,
// because a panic that is not recovered in its own goroutine ends the process.
func guarded(logger hclog.Logger, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logger.Error("a load panicked", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrPanicked, p)
		}
	}()
	return f()
}

// meter reports progress at most every 20 ms, and at the end. Any goroutine may add.
type meter struct {
	stage  Stage
	total  uint64
	begin  time.Time
	report func(Progress)
	mu     struct {
		sync.Mutex
		done uint64
		last time.Time
	}
}

func newMeter(stage Stage, total uint64, report func(Progress)) *meter {
	m := &meter{stage: stage, total: total, begin: time.Now(), report: report}
	report(Progress{Stage: stage, Total: total})
	return m
}

func (m *meter) add(bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.done += bytes
	now, done := time.Now(), m.mu.done
	if done < m.total && now.Sub(m.mu.last) < 20*time.Millisecond {
		return
	}
	m.mu.last = now
	p := Progress{Stage: m.stage, Done: done, Total: m.total}
	if done > 0 {
		p.ETA = time.Duration(float64(now.Sub(m.begin)) * float64(m.total-done) / float64(done))
	}
	m.report(p)
}
