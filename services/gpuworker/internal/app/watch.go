package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
)

const (
	watchInterval = 500 * time.Millisecond
	// farewell is how long a worker that lost its GPU still tells so to those who watch its health.
	farewell = 3 * time.Second
	// hungFor is how far beyond its bound a step may be before the GPU counts as lost.
	hungFor = time.Minute
)

// watchGPU returns when ctx ends or when a GPU is lost: a step failed on it, or something else did after which every call of
// the process fails, which device then says; or a step hangs far beyond its bound. It is nil for a GPU that works when ctx
// ends. Only a new process gets a lost GPU back, so the caller ends this one and its supervisor starts the next. The health
// report has named the error meanwhile.
func watchGPU(ctx context.Context, device func() error, statuses func() []model.Status) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return lost(device(), statuses()) // the last requests may have ended because of it, between two looks
		case <-tick.C:
		}
		err := lost(device(), statuses())
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(farewell):
		}
		return err
	}
}

// lost says why the GPU is, or nil.
func lost(device error, statuses []model.Status) error {
	if errors.Is(device, engine.ErrDevice) {
		return fmt.Errorf("the GPU is lost, the worker must start anew: %w", device)
	}
	for _, m := range statuses {
		if errors.Is(m.Problem, batch.ErrStepFailed) && errors.Is(m.Problem, engine.ErrDevice) {
			return fmt.Errorf("the GPU is lost, the worker must start anew: model %q: %w", m.Name, m.Problem)
		}
		if m.State == model.Ready && m.Steps.RunningStepAge > m.Steps.StepBound+hungFor {
			return fmt.Errorf("%w: a step of model %q has been running for %v, the worker must start anew", engine.ErrDevice, m.Name,
				m.Steps.RunningStepAge.Round(time.Second))
		}
	}
	return nil
}
