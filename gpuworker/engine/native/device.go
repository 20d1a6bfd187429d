package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Device is a device of a native engine. Besides engine.Device it is an engine.Meter, an
// engine.Operator, an engine.Stager and an engine.Refuser.
type Device struct {
	lease
	t       *table
	h       *C.mr_device
	logger  hclog.Logger
	staged  stagings
	refused atomic.Uint64 // refused frees that were logged
}

// Info returns the device and its ledger.
func (d *Device) Info() (engine.DeviceInfo, error) {
	if err := d.acquire("device"); err != nil {
		return engine.DeviceInfo{}, err
	}
	defer d.release()
	info := C.mr_device_info{struct_size: C.sizeof_mr_device_info}
	if err := d.t.check(C.mrt_device_info(d.t.api, d.h, &info)); err != nil {
		return engine.DeviceInfo{}, fmt.Errorf("device info: %w", err)
	}
	return infoOf(&info, d.t.build), nil
}

// watchFrees logs the frees that the device has refused since the last call. The close of a model
// or a runner cannot return such an error: the engine keeps the bytes counted and frees them again
// later.
func (d *Device) watchFrees(after string) {
	info, err := d.Info()
	if err != nil {
		return // a lost or closed device has returned an error already
	}
	if before := d.refused.Swap(info.FailedFrees); info.FailedFrees > before {
		d.logger.Error("device refused memory that was given back, it stays counted", "after", after,
			"refused", info.FailedFrees-before, "refused_in_all", info.FailedFrees)
	}
}

// Alloc returns size zeroed bytes.
func (d *Device) Alloc(size uint64, purpose engine.Purpose) (engine.Buffer, error) {
	if err := d.acquire("device"); err != nil {
		return nil, err
	}
	defer d.release()
	var handle *C.mr_buffer
	if err := d.t.check(C.mrt_buffer_alloc(d.t.api, d.h, C.uint64_t(size), C.int32_t(purpose), &handle)); err != nil {
		return nil, fmt.Errorf("alloc %d bytes: %w", size, err)
	}
	return &Buffer{d: d, t: d.t, h: handle, size: size}, nil
}

// ResidentSize returns the device bytes of a tensor once it is bound.
func (d *Device) ResidentSize(desc engine.TensorDesc) (uint64, error) {
	cdesc, err := tensorDesc(desc)
	if err != nil {
		return 0, err
	}
	if err := d.acquire("device"); err != nil {
		return 0, err
	}
	defer d.release()
	var size C.uint64_t
	if err := d.t.check(C.mrt_model_resident_size(d.t.api, d.h, &cdesc, &size)); err != nil {
		return 0, fmt.Errorf("resident size: %w", err)
	}
	return uint64(size), nil
}

// NewModel returns an empty model.
func (d *Device) NewModel(desc engine.ModelDesc) (engine.Model, error) {
	var pins runtime.Pinner
	defer pins.Unpin()
	cdesc, err := modelDesc(&desc, &pins)
	if err != nil {
		return nil, err
	}
	if err := d.acquire("device"); err != nil {
		return nil, err
	}
	defer d.release()
	var handle *C.mr_model
	if err := d.t.check(C.mrt_model_create(d.t.api, d.h, &cdesc, &handle)); err != nil {
		return nil, fmt.Errorf("create model: %w", err)
	}
	return &Model{d: d, t: d.t, h: handle, desc: desc}, nil
}

// Measure measures a roof of the device for about durationNS nanoseconds.
func (d *Device) Measure(what engine.Measure, durationNS uint64) (float64, error) {
	if err := d.acquire("device"); err != nil {
		return 0, err
	}
	defer d.release()
	var rate C.double
	err := d.t.check(C.mrt_device_measure(d.t.api, d.h, C.int32_t(what), C.uint64_t(durationNS), &rate))
	if err != nil {
		return 0, fmt.Errorf("measure: %w", err)
	}
	return float64(rate), nil
}

// Refuse injects memory faults.
func (d *Device) Refuse(what engine.Refusal, skip int, count uint64) error {
	var n narrow
	index := n.i32("skip", skip)
	if n.err != nil {
		return n.err
	}
	if err := d.acquire("device"); err != nil {
		return err
	}
	defer d.release()
	if err := d.t.check(C.mrt_device_fault(d.t.api, d.h, C.int32_t(what), index, C.uint64_t(count))); err != nil {
		return fmt.Errorf("refuse memory: %w", err)
	}
	return nil
}

// Close returns ErrPrecondition, and changes nothing, while buffers, models, runners or staged
// memory live.
func (d *Device) Close() error {
	if err := d.close("device"); err != nil {
		return err
	}
	if n := d.staged.count.Load(); n > 0 { // checked for every engine: one that closes would free memory in use
		d.reopen()
		return fmt.Errorf("close device: %d pieces of staged memory live: %w", n, engine.ErrPrecondition)
	}
	if err := d.t.check(C.mrt_device_close(d.t.api, d.h)); err != nil {
		d.reopen()
		return fmt.Errorf("close device: %w", err)
	}
	return nil
}

var (
	_ engine.Device   = (*Device)(nil)
	_ engine.Meter    = (*Device)(nil)
	_ engine.Operator = (*Device)(nil)
	_ engine.Refuser  = (*Device)(nil)
)
