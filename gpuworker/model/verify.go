package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
)

// verify compares the digests of the resident bytes of all tensors from index first on with the
// file's, and calls after for each tensor.
func (i *Instance) verify(ctx context.Context, first int, after func(tensor int)) error {
	for n := first; n < len(i.tensors); n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := i.verifyTensor(n, i.tensors[n]); err != nil {
			return err
		}
		after(n)
	}
	i.mu.Lock()
	i.mu.verified = time.Now()
	i.mu.Unlock()
	return nil
}

// verifyBound verifies tensors as they are bound, while others are still being uploaded, until done
// or ctx ends. It verifies nothing after ctx has ended, because a difference found then would hide
// the cause.
func (i *Instance) verifyBound(ctx context.Context, bound <-chan tensorDigest, done <-chan struct{}) (checked int, err error) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-done:
			return checked, nil
		case t := <-bound:
			if ctx.Err() != nil { // both channels were ready
				continue
			}
			if err := i.verifyTensor(checked, t); err != nil {
				return checked, err
			}
			checked++
		}
	}
	return checked, context.Cause(ctx)
}

// verifyTensor compares the digest of one bound tensor's resident bytes with the file's.
func (i *Instance) verifyTensor(n int, t tensorDigest) error {
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

// Verify checks every tensor of a loaded model now. A difference takes the model out of service. If
// the device fails to compute a digest, the model stays in service and its VerifiedAge grows.
func (m *Manager) Verify(ctx context.Context, name string) error {
	inst, release, err := m.acquire(name, false)
	if err != nil {
		return err
	}
	defer release()
	return m.checkResidency(ctx, inst)
}

// checkResidency checks all tensors of an acquired instance. It ends early, with context.Canceled,
// when the instance retires.
func (m *Manager) checkResidency(ctx context.Context, inst *Instance) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	err := inst.verify(ctx, 0, func(int) {
		if inst.retiring() {
			cancel()
			return
		}
		// The check yields to requests: while some run, it pauses after each tensor for four times
		// the time that the tensor took, at most a second, because an unload waits for the pause.
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

// damaged reports whether a check found differing bytes or a failed device.
func damaged(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, engine.ErrDataLoss) || errors.Is(err, engine.ErrDevice)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// watch checks the residency of all loaded models, one after another, with a pause of
// VerifyInterval before each round.
func (m *Manager) watch(ctx context.Context) {
	if m.cfg.VerifyInterval < 0 {
		return
	}
	for ctx.Err() == nil {
		pause(ctx, m.cfg.VerifyInterval)
		for _, s := range m.Loaded() {
			if s.State == Ready && ctx.Err() == nil {
				_ = m.Verify(ctx, s.Name) // logged, and visible in the model's state
			}
		}
	}
}
