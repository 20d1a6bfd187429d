package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/proc"
)

// ErrFailed is returned if a check fails.
var ErrFailed = errors.New("a check of memory failed")

// MemoryConfig configures RunMemory.
type MemoryConfig struct {
	Largest  uint64        // bytes of the largest copy and pooled buffer
	Piece    uint64        // bytes of each allocation that fills the device
	Contexts int           // that allocate together
	Repeat   int           // maximum of measurements of a figure
	Budget   time.Duration // for these measurements; at least three are made
	// Ceiling is set if the device was opened with a memory limit. Contexts of a CPU have no other
	// limit.
	Ceiling bool
}

// MemorySetup gives access to the device and to other programs.
type MemorySetup struct {
	// Open opens the device again, with or without the engine's pool of freed blocks.
	Open func(pool bool) (engine.Device, error)
	// Driver is the command line of the program that measures the driver itself; empty: not
	// measured.
	Driver []string
	// Peer is the command line of a program that opens the same device, calls Peer and ends.
	Peer []string
}

// Limits bound a run.
const (
	smallest    = 1 << 10 // bytes of a copy
	mostBytes   = 1 << 36
	mostRepeat  = 1000
	mostContext = 16
)

// Validate returns every error of the configuration.
func (c *MemoryConfig) Validate() error {
	var wrong []error
	size := func(name string, value, low uint64) {
		if value < low || value > mostBytes {
			wrong = append(wrong, fmt.Errorf("%s %s: want %s to %s", name, sizeName(value), sizeName(low), sizeName(mostBytes)))
		}
	}
	size("--largest", c.Largest, smallest)
	size("--piece", c.Piece, leastPiece)
	if c.Contexts < 2 || c.Contexts > mostContext {
		wrong = append(wrong, fmt.Errorf("--contexts %d: want 2 to %d", c.Contexts, mostContext))
	}
	if c.Repeat < 1 || c.Repeat > mostRepeat {
		wrong = append(wrong, fmt.Errorf("--repeat %d: want 1 to %d", c.Repeat, mostRepeat))
	}
	if c.Budget < time.Millisecond || c.Budget > time.Minute {
		wrong = append(wrong, fmt.Errorf("--budget %v: want 1ms to 1m", c.Budget))
	}
	return errors.Join(wrong...)
}

// sizeName returns a size as rows have it: 1KiB, 64MiB, or 1000B.
func sizeName(bytes uint64) string {
	for _, unit := range []struct {
		suffix string
		bytes  uint64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= unit.bytes && bytes%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", bytes/unit.bytes, unit.suffix)
		}
	}
	return fmt.Sprintf("%dB", bytes)
}

// run is a run in progress.
type run struct {
	cfg      MemoryConfig
	setup    MemorySetup
	info     engine.DeviceInfo
	progress func(format string, args ...any)
	report   MemoryReport
}

// RunMemory measures a device. progress gets lines for a user. The report is complete if it is not
// nil and the error is nil or ErrFailed.
func RunMemory(ctx context.Context, setup MemorySetup, c MemoryConfig, progress func(format string, args ...any)) (*MemoryReport, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &run{cfg: c, setup: setup, progress: progress, report: MemoryReport{Machine: proc.ThisMachine()}}
	if len(setup.Driver) > 0 {
		progress("measuring the driver")
	}
	var err error
	if r.report.Driver, err = runDriver(ctx, setup.Driver, c.Largest); err != nil {
		return nil, err
	}
	if err := r.withDevice(true, func(dev engine.Device) error { return r.figures(ctx, dev) }); err != nil {
		return nil, err
	}
	if err := r.pool(ctx); err != nil {
		return nil, err
	}
	for _, check := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"all memory", r.everything}, {"fragments", r.fragments}, {"contexts", r.together}, {"trim and retry", r.trimmed},
		{"processes", r.processes},
	} {
		progress("%s", check.name)
		text, err := check.do(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.report.add(check.name, text, err)
	}
	return &r.report, r.report.failed()
}

// figures describes the device and measures its copies and its bus.
func (r *run) figures(ctx context.Context, dev engine.Device) (err error) {
	if r.info, err = dev.Info(); err != nil {
		return err
	}
	if r.info.Kind == "sim" {
		return fmt.Errorf("a sim device has no memory of its own: %w", engine.ErrUnsupported)
	}
	r.report.Device = MemoryDevice{
		Kind: r.info.Kind, Name: r.info.Name, Build: r.info.Build, BytesFree: r.info.BytesFree, Physical: r.info.PhysicalTotal,
		Management: r.info.ManagementProblem,
	}
	if err := r.copies(ctx, dev); err != nil {
		return err
	}
	r.report.Bus = Bus{Text: "none: the CPU engine's memory is the host's"}
	if r.info.Kind != "cpu" {
		place := ""
		if r.report.Driver != nil {
			place = r.report.Driver.Bus
		}
		fastest := max(r.report.Driver.best(toDevice), r.report.Driver.best(fromDevice))
		for _, c := range r.report.Copies {
			if c.Way != onDevice {
				fastest = max(fastest, c.Rate.Median)
			}
		}
		r.report.Bus = findBus(ctx, r.info.UUID, place, fastest)
	}
	r.report.shares()
	return nil
}

// withDevice opens the device for one part of the run. It returns an error if the part leaves
// anything on the device.
func (r *run) withDevice(pool bool, use func(engine.Device) error) (err error) {
	dev, err := r.setup.Open(pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	return use(dev)
}

func (r *run) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

const (
	// group is the time of calls that are measured together, far above the cost of reading the
	// clock.
	group = time.Millisecond
	// leastGroups are measured even beyond the budget.
	leastGroups = 3
	// mostCalls bounds the calls of a group.
	mostCalls = 10000
)

// timed returns the seconds of a call, measured in groups after two calls that do not count.
func timed(ctx context.Context, c *MemoryConfig, call func() error) (seconds []float64, err error) {
	if err := call(); err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := call(); err != nil {
		return nil, err
	}
	calls := int(min(max(group/max(time.Since(begin), 1), 1), mostCalls))
	for first := time.Now(); len(seconds) < min(leastGroups, c.Repeat) ||
		len(seconds) < c.Repeat && time.Since(first) < c.Budget; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		begin := time.Now()
		for range calls {
			if err := call(); err != nil {
				return nil, err
			}
		}
		seconds = append(seconds, max(time.Since(begin), 1).Seconds()/float64(calls))
	}
	return seconds, nil
}

// each maps every value.
func each(values []float64, to func(float64) float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = to(v)
	}
	return out
}
