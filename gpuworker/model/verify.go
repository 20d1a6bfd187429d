package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// verify compares the digest of every tensor's resident bytes, from the first given on, with its file's. after is called
// behind each tensor.
func (i *Instance) verify(ctx context.Context, first int, after func(tensor int)) error {
	for n := first; n < len(i.tensors); n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := i.check(n, i.tensors[n]); err != nil {
			return err
		}
		after(n)
	}
	i.mu.Lock()
	i.mu.verified = time.Now()
	i.mu.Unlock()
	return nil
}

// follow checks tensors that are bound, while others are still on their way, until done or ctx ends. Nothing is checked once
// ctx has: what it would find then says nothing of why.
func (i *Instance) follow(ctx context.Context, bound <-chan residency, done <-chan struct{}) (checked int, err error) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-done:
			return checked, nil
		case t := <-bound:
			if ctx.Err() != nil { // both were ready
				continue
			}
			if err := i.check(checked, t); err != nil {
				return checked, err
			}
			checked++
		}
	}
	return checked, context.Cause(ctx)
}

// check compares the digest of one bound tensor's resident bytes with its file's.
func (i *Instance) check(n int, t residency) error {
	got, err := i.model.Digest(n)
	if err != nil {
		return fmt.Errorf("digest of tensor %q: %w", t.name, err)
	}
	if got != t.digest {
		return fmt.Errorf("%w: tensor %q has digest %x, its file %x; unload and load the model again",
			ErrCorrupt, t.name, got[:8], t.digest[:8])
	}
	return nil
}

// Verify checks every tensor of a loaded model now; a difference takes the model out of service. A digest that the device
// could not compute says nothing of the bytes: the model serves on, and its VerifiedAge grows until a check succeeds.
func (m *Manager) Verify(ctx context.Context, name string) error {
	inst, release, err := m.acquire(name, false)
	if err != nil {
		return err
	}
	defer release()
	return m.check(ctx, inst)
}

// check is one pass over an instance that its caller has acquired. It ends early, with context.Canceled, when the
// instance is to be unloaded, which would wait for it.
func (m *Manager) check(ctx context.Context, inst *Instance) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	err := inst.verify(ctx, 0, func(int) {
		if inst.leaving() {
			cancel()
			return
		}
		// The pass yields to work: while requests run it rests after each tensor for four times what that took, a second at
		// most, since an unload waits for the rest to end.
		if busy := time.Since(begin); !inst.Loop.Idle() {
			pause(ctx, min(4*busy, time.Second))
		}
		begin = time.Now()
	})
	switch {
	case err == nil || ctx.Err() != nil:
	case damaged(err):
		m.logger.Error("residency check failed", "model", inst.Name, "error", err)
		inst.fail(err)
	default:
		m.logger.Warn("residency check not done", "model", inst.Name, "error", err)
	}
	return err
}

// damaged says whether a check found bytes that differ, or a device that failed under it.
func damaged(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, engine.ErrDataLoss) || errors.Is(err, engine.ErrDevice)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// watch checks the residency of every loaded model again and again, one after another, with a pause of VerifyInterval before
// each round.
func (m *Manager) watch(ctx context.Context) {
	if m.cfg.VerifyInterval < 0 {
		return
	}
	for ctx.Err() == nil {
		pause(ctx, m.cfg.VerifyInterval)
		for _, s := range m.Loaded() {
			if s.State == Ready && ctx.Err() == nil {
				_ = m.Verify(ctx, s.Name) // logged, and shown as the model's state
			}
		}
	}
}

// stepStats is here so that a state can be asked for without a loop, as while loading.
func (i *Instance) stepStats() batch.Stats {
	if i.Loop == nil {
		return batch.Stats{}
	}
	return i.Loop.Stats()
}
