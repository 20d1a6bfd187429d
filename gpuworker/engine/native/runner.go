package native

/*
#include "table.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Runner runs steps of one model, and is an engine.LateMasker and an engine.Faulter. Arguments and
// results are in C arrays that are reused, so a step in a steady state allocates nothing in Go.
type Runner struct {
	lease
	d    *Device
	t    *table
	h    *C.mr_runner
	args stepArgs
	res  stepResults
}

func newRunner(d *Device, h *C.mr_runner, cfg engine.RunnerConfig, desc *engine.ModelDesc) *Runner {
	r := &Runner{d: d, t: d.t, h: h}
	r.args.make(desc.Vocab)
	r.res.make(cfg, desc.Hidden)
	return r
}

// Submit starts a step and returns; the engine has copied its arguments. It also returns
// ErrPrecondition if the driver refused the step and nothing changed: the step may be submitted
// again.
func (r *Runner) Submit(s *engine.Step) error {
	if err := r.acquire("runner"); err != nil {
		return err
	}
	defer r.release()
	if err := r.args.pack(s); err != nil {
		return fmt.Errorf("submit step: %w", err)
	}
	if err := r.t.check(C.mrt_step_submit(r.t.api, r.h, r.args.step)); err != nil {
		return fmt.Errorf("submit step: %w", err)
	}
	r.args.masks.submitted()
	return nil
}

// Masks sets the masks that the step submitted last waits for.
func (r *Runner) Masks(masks [][]uint32) error {
	if err := r.acquire("runner"); err != nil {
		return err
	}
	defer r.release()
	words, err := r.args.masks.fill(masks)
	if err != nil {
		return fmt.Errorf("late masks: %w", err)
	}
	if err := r.t.check(C.mrt_step_masks(r.t.api, r.h, (*C.uint32_t)(unsafe.SliceData(words)), C.int64_t(len(words)))); err != nil {
		return fmt.Errorf("late masks: %w", err)
	}
	r.args.masks.given()
	return nil
}

// Wait blocks its thread in the engine until the oldest step has ended or the timeout has passed. A
// negative timeout counts as zero. The result is valid until the next Wait or Close.
func (r *Runner) Wait(timeout time.Duration) (*engine.StepResult, error) {
	if err := r.acquire("runner"); err != nil {
		return nil, err
	}
	defer r.release()
	r.res.reset()
	if err := r.t.check(C.mrt_step_wait(r.t.api, r.h, C.uint64_t(max(timeout, 0)), r.res.c)); err != nil {
		return nil, fmt.Errorf("wait for step: %w", err)
	}
	return r.res.unpack()
}

// Progress may be called from any goroutine; after Close it is zero.
func (r *Runner) Progress() engine.Progress {
	if r.acquire("runner") != nil {
		return engine.Progress{}
	}
	defer r.release()
	p := C.mr_progress{struct_size: C.sizeof_mr_progress}
	if r.t.check(C.mrt_runner_progress(r.t.api, r.h, &p)) != nil {
		return engine.Progress{}
	}
	return engine.Progress{
		Submitted: uint64(p.submitted), Completed: uint64(p.completed), Running: time.Duration(p.running_ns),
	}
}

// Fault injects a fault into the next step.
func (r *Runner) Fault(f engine.Fault, index int32, value uint64) error {
	if err := r.acquire("runner"); err != nil {
		return err
	}
	defer r.release()
	if err := r.t.check(C.mrt_runner_fault(r.t.api, r.h, C.int32_t(f), C.int32_t(index), C.uint64_t(value))); err != nil {
		return fmt.Errorf("runner fault: %w", err)
	}
	return nil
}

// Close waits for steps in flight and frees the KV cache.
func (r *Runner) Close() error {
	if err := r.close("runner"); err != nil {
		return err
	}
	if err := r.t.check(C.mrt_runner_destroy(r.t.api, r.h)); err != nil {
		r.reopen()
		return fmt.Errorf("close runner: %w", err)
	}
	r.args.free()
	r.res.free()
	r.d.watchFrees("a runner was closed")
	return nil
}

var (
	_ engine.Runner     = (*Runner)(nil)
	_ engine.LateMasker = (*Runner)(nil)
	_ engine.Faulter    = (*Runner)(nil)
)
