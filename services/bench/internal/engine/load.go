package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/bench/internal/proc"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

const extension = ".gguf"

// load loads the model as a worker with default flags does, Repeat times and once more to measure
// memory. It then generates the tokens that the benchmark must compute too.
func (r *run) load(ctx context.Context, logger hclog.Logger) (tokens []int32, err error) {
	dir, file := filepath.Split(r.cfg.Model)
	name, ok := strings.CutSuffix(file, extension)
	if !ok {
		return nil, fmt.Errorf("model %s: want a file named *%s, as workers do", r.cfg.Model, extension)
	}
	files := []string{file}
	if prefix, _, count, split := gguf.ParsePartName(file); split { // Open has checked the count
		name, files = prefix, nil
		for i := range count {
			files = append(files, gguf.PartName(prefix, i+1, count))
		}
	}
	for _, file := range files {
		if err := cacheFile(filepath.Join(dir, file)); err != nil {
			return nil, err
		}
	}
	manager := model.NewManager(model.Config{Dir: filepath.Clean(dir + "."), VerifyInterval: -1}, r.device, logger)
	defer func() { err = errors.Join(err, manager.Close()) }()
	var seconds, verified, ready []float64
	for i := range r.cfg.Repeat {
		r.progress("loading: %d of %d", i+1, r.cfg.Repeat)
		if i > 0 {
			if _, err := manager.Unload(ctx, name, false); err != nil {
				return nil, err
			}
		}
		watch := newStopwatch()
		inst, _, err := manager.Load(ctx, name, model.Options{KVType: &r.kv}, watch.progress)
		if err != nil {
			return nil, err
		}
		took := watch.stop()
		seconds, ready = append(seconds, took), append(ready, float64(r.spec.Bytes)/took)
		verified = append(verified, float64(r.spec.Bytes)/(took-watch.seconds(model.Warming)))
		r.report.Load.Stages, r.report.Model.Digest = watch.stages, digestText(inst.Digest)
	}
	r.report.Load.Seconds = stats.SpreadOf(seconds).Median
	r.report.Load.Verified, r.report.Load.Ready = stats.SpreadOf(verified), stats.SpreadOf(ready)
	if _, err := manager.Unload(ctx, name, false); err != nil {
		return nil, err
	}
	if err := r.measureMemory(ctx, manager, name); err != nil {
		return nil, err
	}
	inst, release, err := manager.Acquire(name)
	if err != nil {
		return nil, err
	}
	defer release()
	first := func(prompt, tokens int) ([]int32, error) {
		return generateTokens(ctx, inst, randomPrompt(r.cfg.Seed, 0, prompt, r.spec.Desc.Vocab), tokens)
	}
	for _, m := range r.cfg.Mixes {
		generated, err := first(m.Prompt, m.Tokens)
		if err != nil {
			return nil, fmt.Errorf("mix %s: %w", m, err)
		}
		r.mixTokens = append(r.mixTokens, generated)
	}
	return first(r.cfg.Prompt, r.cfg.Tokens)
}

// cacheFile reads a file once, so that it is in the page cache if it fits.
func cacheFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, f)
	return errors.Join(err, f.Close())
}

// stopwatch measures the stages of a load.
type stopwatch struct {
	begin, last time.Time
	stage       model.Stage
	stages      []Stage
}

var stageNames = map[model.Stage]string{
	model.Queued: "queued", model.Reading: "reading", model.Uploading: "uploading", model.Verifying: "verifying",
	model.Warming: "warming", model.Loaded: "loaded",
}

func newStopwatch() *stopwatch {
	now := time.Now()
	return &stopwatch{begin: now, last: now, stage: model.Queued}
}

// progress receives every report of the load.
func (w *stopwatch) progress(p model.Progress) {
	if p.Stage != w.stage {
		w.lap(time.Now())
		w.stage = p.Stage
	}
}

func (w *stopwatch) lap(now time.Time) {
	w.stages = append(w.stages, Stage{Name: stageNames[w.stage], Seconds: now.Sub(w.last).Seconds()})
	w.last = now
}

// seconds returns the duration of a stage.
func (w *stopwatch) seconds(stage model.Stage) (sum float64) {
	for _, s := range w.stages {
		if s.Name == stageNames[stage] {
			sum += s.Seconds
		}
	}
	return sum
}

// stop ends the last stage and returns the seconds of the whole load.
func (w *stopwatch) stop() float64 {
	now := time.Now()
	if w.stage != model.Loaded {
		w.lap(now)
	}
	return now.Sub(w.begin).Seconds()
}

// Memory is the peak of a load, sampled every millisecond, and its parts, in bytes.
type Memory struct {
	DevicePeak uint64 `json:"device_peak"`
	Model      uint64 `json:"model"`          // resident weights
	Tensor     uint64 `json:"largest_tensor"` // in the file
	KV         uint64 `json:"kv"`
	Workspace  uint64 `json:"workspace"`
	// HostPeak is the memory of this process outside the page cache. It includes the device of a
	// CPU.
	HostPeak uint64 `json:"host_peak"`
}

// bound returns the most that a load may use. Tensors are staged one at a time.
func (m *Memory) bound() uint64 { return m.Model + m.Tensor + m.KV + m.Workspace }

// check returns ErrMemory if the load used more.
func (m *Memory) check() error {
	if m.DevicePeak > m.bound() {
		return fmt.Errorf("%w: %d bytes, and %d are the model, its largest tensor, KV cache and workspace", ErrMemory,
			m.DevicePeak, m.bound())
	}
	return nil
}

// measureMemory loads a model that is not loaded and measures its memory. The time of this load
// does not count.
func (r *run) measureMemory(ctx context.Context, manager *model.Manager, name string) error {
	watch, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- r.watch(watch) }()
	_, _, err := manager.Load(ctx, name, model.Options{KVType: &r.kv}, func(model.Progress) {})
	stop()
	if err := errors.Join(err, <-watched); err != nil {
		return err
	}
	info, err := r.device.Info()
	if err != nil {
		return err
	}
	m := &r.report.Load.Memory
	m.DevicePeak = max(m.DevicePeak, used(info))
	m.Model, m.KV, m.Workspace = info.BytesUsed[engine.Weights], info.BytesUsed[engine.KV], info.BytesUsed[engine.Workspace]
	for _, b := range r.spec.Bindings {
		m.Tensor = max(m.Tensor, b.Bytes())
	}
	return nil
}

// watch records the peak until ctx ends.
func (r *run) watch(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	m := &r.report.Load.Memory
	for {
		info, err := r.device.Info()
		if err != nil {
			return err
		}
		m.DevicePeak, m.HostPeak = max(m.DevicePeak, used(info)), max(m.HostPeak, proc.OwnMemory())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func used(info engine.DeviceInfo) (sum uint64) {
	for _, bytes := range info.BytesUsed {
		sum += bytes
	}
	return sum
}
