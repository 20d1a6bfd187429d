package model

import (
	"context"
	"errors"
	"fmt"
)

// Unloaded is what an Unload did.
type Unloaded struct {
	Freed     uint64 // device bytes of the model that was loaded
	LoadEnded bool   // whether a load was under way, which has ended without a model
}

// Unload takes a model out. It ends the load that is under way, whose callers get ErrLoadEnded. Of a loaded model it refuses new
// requests, waits for the running ones or cancels them, and gives the memory back. All of that goes on when ctx ends. Where the device
// refuses the memory, the model stays, out of service, and Unload may be called again.
func (m *Manager) Unload(ctx context.Context, name string, cancel bool) (Unloaded, error) {
	if err := CheckName(name); err != nil {
		return Unloaded{}, err
	}
	m.mu.Lock()
	j := m.mu.loads[name]
	m.mu.Unlock()
	var out Unloaded
	if j != nil {
		j.end(fmt.Errorf("%w: %q", ErrLoadEnded, name))
		_, err := j.wait(ctx, nil)
		if ctx.Err() != nil {
			m.unloadAfter(j, name, cancel)
			return Unloaded{}, context.Cause(ctx)
		}
		out.LoadEnded = err != nil // else it was done before it could be ended, and the model is there
	}
	freed, err := m.unloadInstance(ctx, name, cancel)
	out.Freed = freed
	if out.LoadEnded && errors.Is(err, ErrNotLoaded) {
		err = nil
	}
	return out, err
}

// unloadAfter unloads what a load that was ended leaves, without a caller: the load may be too far to be
// ended, and it may have found a model that drains. Close does the same.
func (m *Manager) unloadAfter(j *job, name string, cancel bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.stopped {
		return
	}
	m.work.Go(func() {
		_, _ = j.wait(m.ctx, nil)                    // how it ends is its callers' matter
		_, _ = m.unloadInstance(m.ctx, name, cancel) // what fails is in the log
	})
}

// unloadInstance is Unload of a model that is loaded.
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
