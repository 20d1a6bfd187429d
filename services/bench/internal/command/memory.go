package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/config"
	"github.com/millrace/millrace/services/bench/internal/device"
)

// driverProgram is the program of cuda/bench/memory.cpp, which is built next to the engine.
const driverProgram = "cuda_bench_memory"

// memoryFlags are the flags of the command memory.
type memoryFlags struct {
	device.MemoryConfig
	largest, piece config.Bytes
	driver, floors string
	device         config.Device
}

// register adds the flags that a peer process has too.
func (f *memoryFlags) register(flags *pflag.FlagSet) {
	f.piece = 1 << 30
	flags.Var(&f.piece, "piece", "size of each allocation that fills the device")
	f.device.Register(flags)
}

// open opens the device with or without its pool.
func (f *memoryFlags) open(c *console, pool bool) (engine.Device, error) {
	open := f.device.Open
	if !pool {
		open = f.device.OpenWithoutPool
	}
	dev, err := open(c.logger())
	if err != nil {
		return nil, fmt.Errorf("open device: %w", err)
	}
	return dev, nil
}

func (c *console) memory() *cobra.Command {
	f := &memoryFlags{largest: 1 << 30}
	cmd := &cobra.Command{
		Use: "memory", Short: "Measures copies and the memory pool of a device, and checks what happens when its memory is full",
		Long: "Copies between host and device from 1 KiB up, pinned and pageable, compared with the driver's own rate and the\n" +
			"peaks of bus and memory; allocation from the pool and from the driver; then all memory at once, fragmentation,\n" +
			"several contexts and several processes. A failed check fails the run, and so does a figure below its floor in\n" +
			"--floors. It allocates all of the device's memory: run it alone.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runMemory(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.Var(&f.largest, "largest", "largest copy and pooled buffer")
	flags.IntVar(&f.Contexts, "contexts", 3, "contexts, and processes, that allocate memory together")
	flags.IntVar(&f.Repeat, "repeat", 25, "maximum of measurements of a figure; the median is reported")
	flags.DurationVar(&f.Budget, "budget", 500*time.Millisecond, "time for the measurements of a figure; at least three are made")
	flags.StringVar(&f.driver, "driver", "", "program that measures the driver (default: "+driverProgram+" next to the engine)")
	flags.StringVar(&f.floors, "floors", "", floorsUsage)
	f.register(flags)
	return cmd
}

func (c *console) runMemory(ctx context.Context, f *memoryFlags) error {
	f.Largest, f.Piece, f.Ceiling = uint64(f.largest), uint64(f.piece), f.device.MemoryLimit != ""
	if err := errors.Join(f.Validate(), f.device.Validate()); err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	set, err := readFloors(f.floors, "memory")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	setup := device.MemorySetup{
		Open: func(pool bool) (engine.Device, error) { return f.open(c, pool) },
		Peer: append([]string{self, "memory-peer"}, f.arguments(c)...),
	}
	if setup.Driver, err = c.driverOf(f); err != nil {
		return err
	}
	report, err := device.RunMemory(ctx, setup, f.MemoryConfig, c.line.Step)
	c.line.Clear()
	if report == nil {
		return err
	}
	report.Floors = judge(set, report.Figure)
	return errors.Join(c.print(report), err, report.Floors.Err())
}

// driverOf returns the command line of the program that measures the driver; nil unless the device
// is a GPU.
func (c *console) driverOf(f *memoryFlags) (argv []string, err error) {
	dev, err := f.open(c, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	info, err := dev.Info()
	if err != nil || info.Kind != "cuda" {
		return nil, err
	}
	path := f.driver
	if path == "" {
		path = nextTo(f.device.EnginePath, driverProgram)
	}
	if path == "" {
		return nil, nil
	}
	index := "0"
	if n, ok := strings.CutPrefix(f.device.Name, "cuda:"); ok {
		index = n
	}
	return []string{path, "--device", index}, nil
}

// nextTo returns the path of a program in the folders of a list of files and folders, divided by
// colons; empty if none has it.
func nextTo(list, program string) string {
	for _, place := range filepath.SplitList(list) {
		if place == "" {
			continue
		}
		for _, dir := range []string{place, filepath.Dir(place)} {
			path := filepath.Join(dir, program)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	return ""
}

// arguments are those with which a peer process opens the same device.
func (f *memoryFlags) arguments(c *console) []string {
	return append(f.device.Arguments(), "--piece", f.piece.String(), "--log-level", c.level)
}

// memoryPeer is the command of the processes that memory starts.
func (c *console) memoryPeer() *cobra.Command {
	f := &memoryFlags{}
	cmd := &cobra.Command{
		Use: "memory-peer", Short: "Allocates all of a device's memory for the command memory", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.device.Validate(); err != nil {
				return fmt.Errorf("%w: %w", ErrUsage, err)
			}
			open := func() (engine.Device, error) { return f.open(c, true) }
			return device.Peer(open, uint64(f.piece), cmd.InOrStdin(), c.out)
		},
	}
	f.register(cmd.Flags())
	return cmd
}
