package enginebench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// Memory is the most that a load took, looked at every millisecond, and what that is made of, in bytes.
type Memory struct {
	DevicePeak uint64 `json:"device_peak"`
	Model      uint64 `json:"model"`          // resident weights
	Tensor     uint64 `json:"largest_tensor"` // in the file
	KV         uint64 `json:"kv"`
	Workspace  uint64 `json:"workspace"`
	// HostPeak is this process's memory above the page cache; of a CPU device what is on the device too.
	HostPeak uint64 `json:"host_peak"`
}

// bound is what a load may take: tensors are staged one at a time.
func (m *Memory) bound() uint64 { return m.Model + m.Tensor + m.KV + m.Workspace }

// check returns ErrMemory for a load that took more.
func (m *Memory) check() error {
	if m.DevicePeak > m.bound() {
		return fmt.Errorf("%w: %d bytes, and %d are the model, its largest tensor, KV cache and workspace", ErrMemory,
			m.DevicePeak, m.bound())
	}
	return nil
}

// weigh loads a model that is not loaded and takes its memory; no time is taken of this load.
func (r *run) weigh(ctx context.Context, manager *model.Manager, name string) error {
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

// watch keeps the most memory seen until ctx ends.
func (r *run) watch(ctx context.Context) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	m := &r.report.Load.Memory
	for {
		info, err := r.device.Info()
		if err != nil {
			return err
		}
		m.DevicePeak, m.HostPeak = max(m.DevicePeak, used(info)), max(m.HostPeak, machine.OwnMemory())
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
