package main

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
	// farewell is how long a worker that lost its GPU keeps reporting so on its health streams
	// before it ends.
	farewell = 3 * time.Second
	// hungFor is how far beyond its bound a step may be before the GPU counts as lost.
	hungFor = time.Minute
)

// isGPU reports whether a device is a GPU, which a worker can lose.
func isGPU(device engine.Device) bool {
	info, err := device.Info()
	return err == nil && info.Kind == "cuda"
}

// watchGPU returns an error when the GPU is lost, and nil if it still works when ctx ends. A GPU is
// lost if a step failed on it, if it cannot be read, or if a step hangs far beyond its bound: after
// that every call of the process fails. Only a new process gets a lost GPU back, so the caller must
// end this one, and its supervisor starts the next. Before it returns the error, health streams
// have had the time to report it. device reads the GPU.
func watchGPU(ctx context.Context, device func() error, statuses func() []model.Status) error {
	check := func() error { return lost(device(), statuses()) }
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return check() // the last requests may have failed because of it since the last tick
		case <-tick.C:
		}
		err := check()
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

// reading returns the function that reads a device for watchGPU.
func reading(device engine.Device) func() error {
	return func() error {
		_, err := device.Info()
		return err
	}
}

// lost returns why the GPU is lost, or nil. device is the error of reading it.
func lost(device error, statuses []model.Status) error {
	if errors.Is(device, engine.ErrDevice) {
		return fmt.Errorf("the GPU is lost, the worker must restart: %w", device)
	}
	for _, m := range statuses {
		if errors.Is(m.Problem, batch.ErrStepFailed) && errors.Is(m.Problem, engine.ErrDevice) {
			return fmt.Errorf("the GPU is lost, the worker must restart: model %q: %w", m.Name, m.Problem)
		}
		if m.State == model.Ready && m.Steps.RunningStepAge > m.Steps.StepBound+hungFor {
			return fmt.Errorf("%w: a step of model %q has been running for %v, the worker must restart", engine.ErrDevice, m.Name,
				m.Steps.RunningStepAge.Round(time.Second))
		}
	}
	return nil
}
