package enginebench

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

	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/bench/internal/gauge"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

const extension = ".gguf"

// load loads the model as a worker with default flags does, Repeat times and once more for its memory, and then lets it
// generate what the benchmark is to compute too.
func (r *run) load(ctx context.Context, logger hclog.Logger) (tokens []int32, err error) {
	dir, file := filepath.Split(r.cfg.Model)
	name, ok := strings.CutSuffix(file, extension)
	if !ok {
		return nil, fmt.Errorf("model %s: want a file named *%s, as workers do", r.cfg.Model, extension)
	}
	if err := cacheFile(r.cfg.Model); err != nil {
		return nil, err
	}
	manager := model.NewManager(model.Config{Dir: filepath.Clean(dir + "."), VerifyInterval: -1}, r.device, logger)
	defer func() { err = errors.Join(err, manager.Close()) }()
	var seconds, verified, ready []float64
	for i := range r.cfg.Repeat {
		r.tell("loading: %d of %d", i+1, r.cfg.Repeat)
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
	if err := r.weigh(ctx, manager, name); err != nil {
		return nil, err
	}
	inst, release, err := manager.Acquire(name)
	if err != nil {
		return nil, err
	}
	defer release()
	first := func(prompt, tokens int) ([]int32, error) {
		return Generate(ctx, inst, gauge.Prompt(r.cfg.Seed, 0, prompt, r.spec.Desc.Vocab), tokens)
	}
	for _, m := range r.cfg.Mixes {
		own, err := first(m.Prompt, m.Tokens)
		if err != nil {
			return nil, fmt.Errorf("mix %s: %w", m, err)
		}
		r.mixTokens = append(r.mixTokens, own)
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

// stopwatch takes the time of a load's stages.
type stopwatch struct {
	begin, last time.Time
	now         model.Stage
	stages      []Stage
}

var stageNames = map[model.Stage]string{
	model.Queued: "queued", model.Reading: "reading", model.Uploading: "uploading", model.Verifying: "verifying",
	model.Warming: "warming", model.Loaded: "loaded",
}

func newStopwatch() *stopwatch {
	now := time.Now()
	return &stopwatch{begin: now, last: now, now: model.Queued}
}

// progress is told of every report of the load.
func (w *stopwatch) progress(p model.Progress) {
	if p.Stage != w.now {
		w.lap(time.Now())
		w.now = p.Stage
	}
}

func (w *stopwatch) lap(now time.Time) {
	w.stages = append(w.stages, Stage{Name: stageNames[w.now], Seconds: now.Sub(w.last).Seconds()})
	w.last = now
}

// seconds is how long a stage took.
func (w *stopwatch) seconds(stage model.Stage) (sum float64) {
	for _, s := range w.stages {
		if s.Name == stageNames[stage] {
			sum += s.Seconds
		}
	}
	return sum
}

// stop ends the last stage and gives the seconds of the whole load.
func (w *stopwatch) stop() float64 {
	now := time.Now()
	if w.now != model.Loaded {
		w.lap(now)
	}
	return now.Sub(w.begin).Seconds()
}
