package model

import (
	"context"
	"errors"
	"fmt"
)

// UnloadResult is what an Unload did.
type UnloadResult struct {
	Freed     uint64 // device bytes of the loaded model
	LoadEnded bool   // a running load ended without a model
}

// Unload takes a model out of service. It ends a running load, whose callers get ErrLoadEnded. A
// loaded model refuses new requests; Unload waits for the running ones, or cancels them, and frees
// the memory. All of that continues when ctx ends. If the device refuses to free the memory, the
// model stays, out of service, and Unload may be called again.
func (m *Manager) Unload(ctx context.Context, name string, cancel bool) (UnloadResult, error) {
	if err := CheckName(name); err != nil {
		return UnloadResult{}, err
	}
	m.mu.Lock()
	j := m.mu.loads[name]
	m.mu.Unlock()
	var out UnloadResult
	if j != nil {
		j.end(fmt.Errorf("%w: %q", ErrLoadEnded, name))
		_, err := j.wait(ctx, nil)
		if ctx.Err() != nil {
			m.unloadAfter(j, name, cancel)
			return UnloadResult{}, context.Cause(ctx)
		}
		out.LoadEnded = err != nil // nil: it succeeded before it could be ended
	}
	freed, err := m.unloadInstance(ctx, name, cancel)
	out.Freed = freed
	if out.LoadEnded && errors.Is(err, ErrNotLoaded) {
		err = nil
	}
	return out, err
}

// unloadAfter unloads whatever an ended load leaves, without a caller. The load may have been too
// far to end, or have found a draining model. Close does the same.
func (m *Manager) unloadAfter(j *job, name string, cancel bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.stopped {
		return
	}
	m.work.Go(func() {
		_, _ = j.wait(m.ctx, nil)                    // its callers get its error
		_, _ = m.unloadInstance(m.ctx, name, cancel) // failures are logged
	})
}

// unloadInstance unloads a model that is loaded.
func (m *Manager) unloadInstance(ctx context.Context, name string, cancel bool) (freed uint64, err error) {
	m.mu.Lock()
	inst := m.mu.instances[name]
	if inst == nil || m.mu.stopped {
		m.mu.Unlock()
		if inst != nil {
			return 0, ErrStopped
		}
		return 0, fmt.Errorf("%w: %q", ErrNotLoaded, name)
	}
	idle, removed, held := inst.drain(), make(chan error, 1), inst.held.Load()
	m.work.Go(func() {
		select {
		case <-idle:
			removed <- m.remove(inst, ErrUnloaded)
		case <-m.ctx.Done():
			removed <- context.Cause(m.ctx)
		}
	})
	m.mu.Unlock()
	if cancel {
		inst.stop(fmt.Errorf("%w: %q", ErrUnloaded, name))
	}
	select {
	case err := <-removed:
		return held - inst.held.Load(), err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
