package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/bench/internal/config"
	"github.com/millrace/millrace/services/bench/internal/device"
)

// opsFlags are the flags of the command ops.
type opsFlags struct {
	device.OpsConfig
	floors string
	device config.Device
}

func (c *console) ops() *cobra.Command {
	f := &opsFlags{}
	cmd := &cobra.Command{
		Use: "ops", Short: "Measures the plain operations on the CPU engine and on a device, side by side",
		Long: "Runs every plain operation on the CPU engine and on --device, and prints both times, the share of the roof and\n" +
			"the speed-up. Results are compared with float64 and with each other: a wrong result has no time and fails the\n" +
			"run. So does a figure below its floor in --floors.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runOps(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.IntSliceVar(&f.Squares, "squares", []int{512, 2048, 4096}, "rows, columns and inner size of each matmul")
	flags.IntVar(&f.Width, "width", 4096, "rows and columns of matvec's matrix, and of operations by row or element")
	flags.IntSliceVar(&f.Keys, "keys", []int{512, 1024, 2048}, "rows and keys of each attention, of 32 heads of 128")
	flags.IntVar(&f.Repeat, "repeat", 25, "maximum of measurements of each operation; the median is reported")
	flags.DurationVar(&f.Budget, "budget", time.Second, "time to measure an operation on a device; it is measured at least once")
	flags.DurationVar(&f.RoofTime, "roof-time", 200*time.Millisecond, "time for each roof, before and after")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	f.device.Register(flags)
	return cmd
}

func (c *console) runOps(ctx context.Context, f *opsFlags) error {
	if err := errors.Join(f.Validate(), f.device.Validate()); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(f.floors, "ops")
	if err != nil {
		return err
	}
	report, err := c.measureOps(ctx, f)
	c.line.Clear()
	if report == nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(c.print(report), err, report.Floors.Err())
}

func (c *console) measureOps(ctx context.Context, f *opsFlags) (_ *device.OpsReport, err error) {
	logger := c.logger()
	named, err := f.device.Open(logger)
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	defer func() { err = errors.Join(err, named.Close()) }()
	info, err := named.Info()
	if err != nil {
		return nil, err
	}
	if info.Kind == "cpu" {
		return device.RunOps(ctx, named, nil, f.OpsConfig, c.line.Step)
	}
	cpuFlags := f.device
	cpuFlags.Name = "cpu"
	cpu, err := cpuFlags.Open(logger)
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	defer func() { err = errors.Join(err, cpu.Close()) }()
	return device.RunOps(ctx, cpu, named, f.OpsConfig, c.line.Step)
}
