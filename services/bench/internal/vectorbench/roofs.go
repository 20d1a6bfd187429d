package vectorbench

import (
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/machine"
	"github.com/millrace/millrace/services/bench/internal/roof"
)

// Roofs are rates a second; 0: not known.
type Roofs struct {
	Read float64 `json:"read_bytes"`
	// Ops is f32 multiply-adds of a processor, each counting two, and those of 16 bits on a GPU's matrix units: a product of f32
	// takes three of them there, so that its share ends at a third.
	Ops float64 `json:"ops"`
}

// reading measures the roof of reading, behind all rows and where one of them is of more bytes than the processor's largest cache
// holds, which are read faster than any memory: to measure it the device touches a good part of the memory.
func (r *run) reading() (err error) {
	cached := uint64(0)
	if r.kind == "cpu" {
		cached = machine.CacheBytes()
	}
	meter, ok := r.dev.(engine.Meter)
	if !ok || !slices.ContainsFunc(r.report.Lines, func(l Line) bool { return l.reads() > float64(cached) }) {
		return nil
	}
	r.tell("measuring the roof of reading")
	if r.report.Roofs.Read, err = roof.MeasureRead(meter, r.cfg.RoofTime); err != nil {
		return err
	}
	again, err := roof.MeasureRead(meter, r.cfg.RoofTime)
	if err != nil {
		return err
	}
	r.report.finish(max(r.report.Roofs.Read, again), float64(cached))
	return nil
}

// pace is a rate of operations: by the clock, and of a processor for each second that its threads had. On a machine that others use
// the second is the steadier one by far; there is none of a GPU.
type pace struct{ wall, processor float64 }

func (p pace) larger(o pace) pace { return pace{max(p.wall, o.wall), max(p.processor, o.processor)} }

// opsRoof is the rate of operations; zero where the device does not measure itself.
func (r *run) opsRoof() (p pace, err error) {
	meter, ok := r.dev.(engine.Meter)
	if !ok {
		return pace{}, nil
	}
	ops := engine.MeasureF32Ops
	if r.kind == "cuda" {
		ops = engine.MeasureBF16Ops
	}
	begin, used := time.Now(), machine.OwnCPU()
	p.wall, err = meter.Measure(ops, uint64(r.cfg.RoofTime))
	took := time.Since(begin)
	if errors.Is(err, engine.ErrUnsupported) {
		return pace{}, nil
	}
	if r.kind == "cpu" {
		p.processor = p.wall * secondsOf(took) / secondsOf(machine.OwnCPU()-used)
	}
	return p, err
}

// busBytes is one copy of those that the way to the device is measured with. To a GPU so many that how a copy begins and how its end is
// noticed take a thousandth of it: streamed rows follow each other without a break.
func (r *run) busBytes() int {
	if r.kind == "cuda" {
		return 512 << 20
	}
	return 64 << 20
}

// bus is the rate at which the caller's memory is copied to the device, of memory that the device gave where it gives some: the
// best of the copies within the time of a roof.
func (r *run) bus() (rate float64, err error) {
	size := r.busBytes()
	to, err := r.dev.Alloc(uint64(size), engine.Workspace)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, to.Free()) }()
	from := make([]byte, size)
	if stager, ok := r.dev.(engine.Stager); ok {
		staged, err := stager.Stage(size)
		switch {
		case err == nil:
			defer func() { err = errors.Join(err, staged.Free()) }()
			from = staged.Bytes()
		case !errors.Is(err, engine.ErrUnsupported) && !errors.Is(err, engine.ErrOutOfMemory):
			return 0, err
		}
	}
	for first := time.Now(); rate == 0 || time.Since(first) < r.cfg.RoofTime; {
		begin := time.Now()
		if _, err := to.WriteAt(from, 0); err != nil {
			return 0, err
		}
		rate = max(rate, float64(size)/secondsOf(time.Since(begin)))
	}
	return rate, nil
}
