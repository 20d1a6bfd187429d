package sim

import (
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Device is a simulated device. Its memory is counted and not allocated, except for buffers that
// were written.
type Device struct {
	opts     Options
	logger   hclog.Logger
	refusals refusals
	mu       struct {
		sync.Mutex
		closed  bool
		used    [engine.PurposeCount]uint64
		buffers uint64
		models  int
		vectors int // trainers and codebooks
	}
}

// Open returns a device with its own memory.
func Open(opts Options, logger hclog.Logger) (*Device, error) {
	if opts.Memory == 0 {
		opts.Memory = 16 << 30
	}
	if opts.StepTime < 0 || opts.PrefillTime < 0 || opts.DecodeTime < 0 || opts.Reserved < 0 {
		return nil, fmt.Errorf("sim options %+v: %w", opts, engine.ErrInvalid)
	}
	logger.Info("device chosen", "kind", "sim", "name", name, "reason", "requested")
	return &Device{opts: opts, logger: logger}, nil
}

const name = "sim: no model is computed, tokens are hashes"

// Info returns the device and its ledger.
func (d *Device) Info() (engine.DeviceInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return engine.DeviceInfo{}, closed("device")
	}
	info := engine.DeviceInfo{
		Kind: "sim", Name: name, Path: "sim", Numerics: "sim-1", Build: "millrace sim engine",
		SMCount: 1, BytesTotal: d.opts.Memory, BytesUsed: d.mu.used, LiveBuffers: d.mu.buffers,
		FailedFrees: d.refusals.failed.Load(), OneClass: !d.opts.TwoClasses, HiddenRows: true,
	}
	info.BytesFree = info.BytesTotal - d.usedLocked()
	return info, nil
}

func (d *Device) usedLocked() (sum uint64) {
	for _, n := range d.mu.used {
		sum += n
	}
	return sum
}

// take counts size bytes, or returns ErrOutOfMemory.
func (d *Device) take(size uint64, purpose engine.Purpose) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return closed("device")
	}
	if purpose < 0 || purpose >= engine.PurposeCount {
		return fmt.Errorf("memory purpose %d: %w", purpose, engine.ErrInvalid)
	}
	if free := d.opts.Memory - d.usedLocked(); size > free || d.refusals.take(engine.RefuseAlloc) {
		return fmt.Errorf("%d bytes asked and %d free: %w", size, free, engine.ErrOutOfMemory)
	}
	d.mu.used[purpose] += size
	return nil
}

func (d *Device) give(size uint64, purpose engine.Purpose) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.used[purpose] -= size
}

// Alloc returns size zeroed bytes.
func (d *Device) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	if size == 0 {
		return nil, fmt.Errorf("alloc 0 bytes: %w", engine.ErrInvalid)
	}
	if err := d.take(size, purpose); err != nil {
		return nil, fmt.Errorf("alloc: %w", err)
	}
	d.mu.Lock()
	d.mu.buffers++
	d.mu.Unlock()
	return &Buffer{dev: d, size: size, purpose: purpose}, nil
}

// ResidentSize returns the size of the tensor in a file: nothing is repacked.
func (d *Device) ResidentSize(desc engine.TensorDesc) (uint64, error) { return rules.TensorSize(desc) }

// NewModel returns an empty model.
func (d *Device) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	if err := rules.CheckModel(&desc); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.closed {
		return nil, closed("device")
	}
	d.mu.models++
	return newModel(d, desc), nil
}

// Close returns ErrPrecondition while buffers or models live.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.closed:
		return closed("device")
	case d.mu.buffers > 0 || d.mu.models > 0:
		return fmt.Errorf("device still has %d buffers and %d models: %w", d.mu.buffers, d.mu.models, engine.ErrPrecondition)
	case d.mu.vectors > 0:
		return fmt.Errorf("device still has %d trainers and codebooks: %w", d.mu.vectors, engine.ErrPrecondition)
	}
	d.mu.closed = true
	return nil
}

// Refuse injects memory faults.
func (d *Device) Refuse(what engine.Refusal, skip int, count uint64) error {
	return d.refusals.ask(what, skip, count)
}

func closed(what string) error { return fmt.Errorf("%s is closed: %w", what, engine.ErrPrecondition) }

var (
	_ engine.Device  = (*Device)(nil)
	_ engine.Refuser = (*Device)(nil)
)
