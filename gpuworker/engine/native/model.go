package native

/*
#include "table.h"
*/
import "C"

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Model is a model of a native engine, and an engine.BitFlipper.
type Model struct {
	lease
	d    *Device
	t    *table
	h    *C.mr_model
	desc engine.ModelDesc
}

// Bind consumes the buffer, even if it fails.
func (m *Model) Bind(desc engine.TensorDesc, buf engine.Buffer) error {
	own, err := m.t.buffer(buf)
	if err != nil {
		if buf != nil {
			err = errors.Join(err, buf.Free())
		}
		return err
	}
	cdesc, err := tensorDesc(desc)
	if err != nil {
		return errors.Join(err, own.Free())
	}
	if err := m.acquire("model"); err != nil {
		return errors.Join(err, own.Free())
	}
	defer m.release()
	if err := own.close("buffer"); err != nil {
		return err
	}
	if err := m.t.check(C.mrt_model_bind(m.t.api, m.h, &cdesc, own.h)); err != nil {
		return fmt.Errorf("bind tensor: %w", err)
	}
	return nil
}

// Seal checks that the model is complete.
func (m *Model) Seal() error {
	if err := m.acquire("model"); err != nil {
		return err
	}
	defer m.release()
	if err := m.t.check(C.mrt_model_seal(m.t.api, m.h)); err != nil {
		return fmt.Errorf("seal model: %w", err)
	}
	return nil
}

// Digest returns BLAKE3 of the tensor's file bytes, computed from the resident bytes.
func (m *Model) Digest(tensor int) (engine.Digest, error) {
	var n narrow
	index := n.i32("tensor", tensor)
	if n.err != nil {
		return engine.Digest{}, n.err
	}
	if err := m.acquire("model"); err != nil {
		return engine.Digest{}, err
	}
	defer m.release()
	var out C.mr_digest
	if err := m.t.check(C.mrt_model_digest(m.t.api, m.h, index, &out)); err != nil {
		return engine.Digest{}, fmt.Errorf("digest tensor %d: %w", tensor, err)
	}
	return digestOf(&out), nil
}

// FlipBit injects a flipped bit into a tensor's resident bytes.
func (m *Model) FlipBit(tensor int, bit uint64) error {
	var n narrow
	index := n.i32("tensor", tensor)
	if n.err != nil {
		return n.err
	}
	if err := m.acquire("model"); err != nil {
		return err
	}
	defer m.release()
	if err := m.t.check(C.mrt_model_fault(m.t.api, m.h, C.MR_FAULT_FLIP_BIT, index, C.uint64_t(bit))); err != nil {
		return fmt.Errorf("flip bit %d of tensor %d: %w", bit, tensor, err)
	}
	return nil
}

// RunnerCost returns the device memory that a runner would allocate.
func (m *Model) RunnerCost(cfg engine.RunnerConfig) (engine.RunnerCost, error) {
	ccfg, err := runnerConfig(cfg)
	if err != nil {
		return engine.RunnerCost{}, err
	}
	if err := m.acquire("model"); err != nil {
		return engine.RunnerCost{}, err
	}
	defer m.release()
	cost := C.mr_runner_cost{struct_size: C.sizeof_mr_runner_cost}
	if err := m.t.check(C.mrt_runner_cost(m.t.api, m.h, &ccfg, &cost)); err != nil {
		return engine.RunnerCost{}, fmt.Errorf("runner cost: %w", err)
	}
	return engine.RunnerCost{
		KVBytes: uint64(cost.kv_bytes), WorkspaceBytes: uint64(cost.workspace_bytes),
		BytesPerBlock: uint64(cost.bytes_per_block), HostBytesPerBlock: uint64(cost.host_bytes_per_block),
		BytesPerState: uint64(cost.bytes_per_state), HostBytesPerState: uint64(cost.host_bytes_per_state),
		BytesPerWindowBlock: uint64(cost.bytes_per_window_block), HostBytesPerWindowBlock: uint64(cost.host_bytes_per_window_block),
		PrefillGrain: max(int(cost.prefill_grain), 0),
	}, nil
}

// NewRunner returns a runner of a sealed model.
func (m *Model) NewRunner(cfg engine.RunnerConfig) (engine.Runner, error) {
	ccfg, err := runnerConfig(cfg)
	if err != nil {
		return nil, err
	}
	if err := m.acquire("model"); err != nil {
		return nil, err
	}
	defer m.release()
	var handle *C.mr_runner
	if err := m.t.check(C.mrt_runner_create(m.t.api, m.h, &ccfg, &handle)); err != nil {
		return nil, fmt.Errorf("create runner: %w", err)
	}
	return newRunner(m.d, handle, cfg, &m.desc), nil
}

// Close returns ErrPrecondition, and changes nothing, while runners live.
func (m *Model) Close() error {
	if err := m.close("model"); err != nil {
		return err
	}
	if err := m.t.check(C.mrt_model_destroy(m.t.api, m.h)); err != nil {
		m.reopen()
		return fmt.Errorf("close model: %w", err)
	}
	m.d.watchFrees("a model was closed")
	return nil
}

var (
	_ engine.Model      = (*Model)(nil)
	_ engine.BitFlipper = (*Model)(nil)
)
