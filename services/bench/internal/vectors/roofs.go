package vectors

import (
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/device"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// Roofs are rates a second; 0: unknown.
type Roofs struct {
	Read float64 `json:"read_bytes"`
	// Ops counts f32 multiply-adds of a processor, or 16-bit multiply-adds of a GPU's tensor cores;
	// each counts two. An f32 GEMM takes three of 16 bits there, so that its share is at most a
	// third.
	Ops float64 `json:"ops"`
}

// reading measures the roof of reading, after all rows. It does so only if a row is larger than
// the processor's largest cache, because smaller rows are read from the cache, and because the
// measurement touches much of the memory.
func (r *run) reading() (err error) {
	cached := uint64(0)
	if r.kind == "cpu" {
		cached = proc.CacheBytes()
	}
	meter, ok := r.dev.(engine.Meter)
	if !ok || !slices.ContainsFunc(r.report.Lines, func(l Line) bool { return l.reads() > float64(cached) }) {
		return nil
	}
	r.progress("measuring the roof of reading")
	if r.report.Roofs.Read, err = device.MeasureRead(meter, r.cfg.RoofTime); err != nil {
		return err
	}
	again, err := device.MeasureRead(meter, r.cfg.RoofTime)
	if err != nil {
		return err
	}
	r.report.finish(max(r.report.Roofs.Read, again), float64(cached))
	return nil
}

// pace is a rate of operations, by wall clock and by the processor time of all threads. On a
// machine with other load the second is much steadier. A GPU does not have it.
type pace struct{ wall, processor float64 }

func (p pace) larger(o pace) pace { return pace{max(p.wall, o.wall), max(p.processor, o.processor)} }

// opsRoof returns the roof of operations; zero if the device cannot measure itself.
func (r *run) opsRoof() (p pace, err error) {
	meter, ok := r.dev.(engine.Meter)
	if !ok {
		return pace{}, nil
	}
	ops := engine.MeasureF32Ops
	if r.kind == "cuda" {
		ops = engine.MeasureBF16Ops
	}
	begin, used := time.Now(), proc.OwnCPU()
	p.wall, err = meter.Measure(ops, uint64(r.cfg.RoofTime))
	took := time.Since(begin)
	if errors.Is(err, engine.ErrUnsupported) {
		return pace{}, nil
	}
	if r.kind == "cpu" {
		p.processor = p.wall * secondsOf(took) / secondsOf(proc.OwnCPU()-used)
	}
	return p, err
}

// busBytes returns the size of a copy that measures the way to the device. On a GPU the start and
// end of a copy of this size take less than a thousandth of it, because streamed rows follow each
// other without a gap.
func (r *run) busBytes() int {
	if r.kind == "cuda" {
		return 512 << 20
	}
	return 64 << 20
}

// bus returns the best rate of copies from the caller's memory to the device, from pinned memory
// if the device has it.
func (r *run) bus() (rate float64, err error) {
	size := r.busBytes()
	target, err := r.dev.Alloc(uint64(size), engine.Workspace)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.Free()) }()
	source := make([]byte, size)
	if stager, ok := r.dev.(engine.Stager); ok {
		staged, err := stager.Stage(size)
		switch {
		case err == nil:
			defer func() { err = errors.Join(err, staged.Free()) }()
			source = staged.Bytes()
		case !errors.Is(err, engine.ErrUnsupported) && !errors.Is(err, engine.ErrOutOfMemory):
			return 0, err
		}
	}
	for first := time.Now(); rate == 0 || time.Since(first) < r.cfg.RoofTime; {
		begin := time.Now()
		if _, err := target.WriteAt(source, 0); err != nil {
			return 0, err
		}
		rate = max(rate, float64(size)/secondsOf(time.Since(begin)))
	}
	return rate, nil
}
