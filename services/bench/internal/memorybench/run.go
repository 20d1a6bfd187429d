package memorybench

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/machine"
)

// run is a run in progress.
type run struct {
	cfg    Config
	setup  Setup
	info   engine.DeviceInfo
	tell   func(format string, args ...any)
	report Report
}

// Run measures a device. tell gets lines about what is going on. When the error is ErrFailed and there is a report, it is
// complete; otherwise it is nil with an error.
func Run(ctx context.Context, setup Setup, c Config, tell func(format string, args ...any)) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &run{cfg: c, setup: setup, tell: tell, report: Report{Machine: machine.Look()}}
	if len(setup.Driver) > 0 {
		tell("measuring the driver")
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
		tell("%s", check.name)
		text, err := check.do(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.report.add(check.name, text, err)
	}
	return &r.report, r.report.failed()
}

// figures describes the device and measures its copies and its link.
func (r *run) figures(ctx context.Context, dev engine.Device) (err error) {
	if r.info, err = dev.Info(); err != nil {
		return err
	}
	if r.info.Kind == "sim" {
		return fmt.Errorf("a sim device has no memory of its own: %w", engine.ErrUnsupported)
	}
	r.report.Device = Device{
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
		r.report.Bus = lookBus(ctx, r.info.UUID, place, fastest)
	}
	r.report.shares()
	return nil
}

// withDevice opens the device for one part of the run. What the part leaves on the device is an error too.
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
