package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/config"
	"github.com/millrace/millrace/services/bench/internal/vectors"
)

// vectorsFlags are the flags of the command vectors.
type vectorsFlags struct {
	vectors.Config
	types    []string
	floors   string
	write    string
	clusters int
	device   config.Device
}

func (c *console) vectors() *cobra.Command {
	f := &vectorsFlags{}
	cmd := &cobra.Command{
		Use: "vectors", Short: "Measures vector codebooks: encoding, iterations and whole trainings, and the share of the device's roofs",
		Long: "Encodes and trains on the device directly, and with --target by calls to a worker or a scheduler of this machine too,\n" +
			"and prints rates as shares of roofs measured in the same run. Codes that differ from float64's, calls that return other\n" +
			"bytes than the device, a share above 100 % and a figure below its floor in --floors fail the run. On a CPU the\n" +
			"trainings are scaled down unless --scale and --iterations say otherwise. --write-data writes rows for other programs.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runVectors(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&f.Parts, "parts", vectors.Parts(), "parts to measure")
	flags.IntVar(&f.Dimension, "dimension", 128, "elements of a row")
	flags.IntSliceVar(&f.Codewords, "codewords", []int{256, 4096, 65536}, "codewords of flat codebooks")
	flags.IntVar(&f.Subspaces, "subspaces", 16, "subspaces of product codebooks, each with 256 codewords")
	flags.IntVar(&f.Rows, "rows", 0, "rows; for trainings see --scale (default: depends on codewords and device)")
	flags.StringSliceVar(&f.types, "type", []string{"f32", "f16"}, "types of the rows' elements")
	flags.Float64Var(&f.Scale, "scale", 0, "share of the full number of rows for every training except large (default: 1, on a CPU 0.02)")
	flags.IntVar(&f.Iterations, "iterations", 0, "maximum of updates of these trainings (default: no reduction, on a CPU 2)")
	flags.IntVar(&f.Repeat, "repeat", 5, "maximum of measurements of each row; the median is reported")
	flags.DurationVar(&f.Budget, "budget", 10*time.Second, "time to measure a row; it is measured at least once")
	flags.Uint64Var(&f.Seed, "seed", 1, "seed of rows, codewords and trainings")
	flags.DurationVar(&f.RoofTime, "roof-time", 50*time.Millisecond, "time for each roof, around every repeat")
	flags.StringVar(&f.Target, "target", "", "worker or scheduler that encodes and trains too: host:port, dns:///name:port or unix:PATH")
	flags.IntVar(&f.InFlight, "in-flight", 4, "calls of up to 4 MiB of rows at once to --target")
	flags.StringVar(&f.write, "write-data", "", "write --rows rows of --dimension to this file, .fvecs, and measure nothing")
	flags.IntVar(&f.clusters, "clusters", 0, "with --write-data: points that the rows lie around (default: normally distributed rows)")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	f.device.Register(flags)
	return cmd
}

func (c *console) runVectors(ctx context.Context, f *vectorsFlags) error {
	if f.write != "" {
		return f.writeData(ctx)
	}
	var wrong []error
	for _, name := range f.types {
		e, err := vectors.ParseType(name)
		f.Types, wrong = append(f.Types, e), append(wrong, err)
	}
	if err := errors.Join(append(wrong, f.Validate(), f.device.Validate())...); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(f.floors, "vectors")
	if err != nil {
		return err
	}
	logger := c.logger()
	open := func(limit uint64) (engine.Device, error) {
		flags := f.device
		if limit > 0 {
			flags.MemoryLimit = strconv.FormatUint(limit, 10)
		}
		return flags.Open(logger)
	}
	report, err := vectors.Run(ctx, open, f.Config, c.line.Step)
	c.line.Clear()
	if report == nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(c.print(report), err, report.Floors.Err())
}

// writeData writes rows for other programs.
func (f *vectorsFlags) writeData(ctx context.Context) (err error) {
	if f.clusters < 0 {
		return fmt.Errorf("%w: --clusters %d: want 0 or more", ErrUsage, f.clusters)
	}
	file, err := os.Create(f.write)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return vectors.Data{Rows: f.Rows, Dimension: f.Dimension, Seed: f.Seed, Clusters: f.clusters}.Write(ctx, file)
}
