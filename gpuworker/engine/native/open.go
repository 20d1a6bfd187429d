package native

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options choose and size a device. The zero value is the best device of this machine with the
// engine's defaults.
type Options struct {
	// Device is "auto" (or empty), "cpu", "gpu" or "cuda" (the first usable GPU), "cuda:N" (the GPU
	// with the driver's number N), or "cuda:N,M,..." (GPUs that hold every model together).
	Device string
	// Threads of the CPU engine; 0 = as many as the CPU quota and affinity allow. They never change
	// results.
	Threads int
	// BytesLimit is the ceiling of the device's ledger in bytes; 0 = the engine's default.
	BytesLimit uint64
	// PoolLimit is how many freed bytes the device keeps for reuse; 0 = the engine's default,
	// NoPool = none.
	PoolLimit uint64
	// Path forces an instruction-set path of the CPU engine: "amx", "avx512bf16", "avx512vnni",
	// "avx2" or "portable"; empty = the best.
	Path string
	// EnginePath lists files or folders, separated by colons, in which the CUDA engine is searched
	// first.
	EnginePath string
	// AnyBuild accepts a CUDA engine that was built from other sources than this program's.
	AnyBuild bool
}

// NoPool makes a device return freed bytes to the driver at once.
const NoPool uint64 = math.MaxUint64

// choice is a parsed Options.Device.
type choice struct {
	auto, gpu bool
	any       bool // the first GPU that can be used, from index on
	index     int
	others    []int // GPUs that hold models together with the one of index
}

func parseDevice(s string) (choice, error) {
	switch s {
	case "", "auto":
		return choice{auto: true, any: true}, nil
	case "cpu":
		return choice{}, nil
	case "gpu", "cuda":
		return choice{gpu: true, any: true}, nil
	}
	if numbers, ok := strings.CutPrefix(s, "cuda:"); ok {
		if indices, err := parseIndices(numbers); err == nil {
			want := choice{gpu: true, index: indices[0]}
			if len(indices) > 1 {
				want.others = indices[1:]
			}
			return want, nil
		} else if !errors.Is(err, strconv.ErrSyntax) && !errors.Is(err, strconv.ErrRange) {
			return choice{}, fmt.Errorf("device %q: %w: %w", s, err, engine.ErrInvalid)
		}
	}
	return choice{}, fmt.Errorf("device %q: want auto, cpu, gpu, cuda, cuda:N or cuda:N,M: %w", s, engine.ErrInvalid)
}

// parseIndices parses the numbers of GPUs, separated by commas. Each may occur once.
func parseIndices(s string) ([]int, error) {
	var indices []int
	for n := range strings.SplitSeq(s, ",") {
		index, err := strconv.ParseUint(n, 10, 15)
		if err != nil {
			return nil, err
		}
		if slices.Contains(indices, int(index)) {
			return nil, fmt.Errorf("GPU %d is named twice", index)
		}
		indices = append(indices, int(index))
	}
	return indices, nil
}

// Check returns ErrInvalid for a wrong name of a device or of an instruction-set path.
func (o Options) Check() error {
	_, err := o.choice()
	return err
}

func (o Options) choice() (choice, error) {
	want, err := parseDevice(o.Device)
	if err == nil && want.gpu && o.Path != "" {
		err = fmt.Errorf("device %q has no instruction-set path %q: paths are the CPU's: %w", o.Device, o.Path, engine.ErrInvalid)
	}
	return want, err
}

// Open opens a device and logs one line with its name and why it was chosen. A GPU that is named by
// its number and cannot be used is ErrNoDevice, with the folders that were searched. Numbers are
// the driver's. "gpu" opens the first usable GPU, and "auto" that GPU or else the CPU.
func Open(opts Options, logger hclog.Logger) (engine.Device, error) {
	want, err := opts.choice()
	if err != nil {
		return nil, err
	}
	why := "requested"
	if want.gpu || want.auto {
		dev, skipped, err := openGPU(opts, want, logger)
		switch {
		case err == nil:
			logChoice(logger, dev, strings.Join(append([]string{"usable by engine " + dev.t.from}, skipped...), "; "))
			return dev, nil
		case want.gpu || !errors.Is(err, engine.ErrNoDevice):
			return nil, err
		}
		why = err.Error()
	}
	t, err := embedded()
	if err != nil {
		return nil, err
	}
	dev, err := t.open(0, nil, opts, logger)
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	logChoice(logger, dev, why)
	return dev, nil
}

// openGPU opens the GPU through the library, and logs why it skipped those before it.
func openGPU(opts Options, want choice, logger hclog.Logger) (dev *Device, skipped []string, err error) {
	if opts.Path != "" {
		return nil, nil, fmt.Errorf("instruction-set path %q is the CPU's: %w", opts.Path, engine.ErrNoDevice)
	}
	binary, err := os.Executable()
	if err != nil {
		binary = "" // its neighbour folders are not searched then
	}
	t, err := library(places(opts.EnginePath, binary), opts.AnyBuild)
	if err != nil {
		return nil, nil, err
	}
	n, err := t.deviceCount()
	if err != nil {
		return nil, nil, fmt.Errorf("engine %s: %w: %w", t.from, engine.ErrNoDevice, err)
	}
	for _, index := range append([]int{want.index}, want.others...) {
		if index >= n {
			return nil, nil, fmt.Errorf("engine %s: cuda:%d does not exist, the driver shows %d GPUs: %w", t.from, index, n,
				engine.ErrNoDevice)
		}
	}
	for index := want.index; ; index++ {
		dev, err := t.open(index, want.others, opts, logger)
		if err == nil {
			return dev, skipped, nil
		}
		if unusable := errors.Is(err, engine.ErrUnsupported) || unavailable(err); !unusable || !want.any || index+1 >= n {
			if unusable { // by this engine, or while other processes use it: the same as no GPU for the caller
				err = fmt.Errorf("%w: %w", engine.ErrNoDevice, err)
			}
			return nil, nil, fmt.Errorf("engine %s: %w", strings.Join(append([]string{t.from}, skipped...), "; "), err)
		}
		skipped = append(skipped, fmt.Sprintf("not cuda:%d: %v", index, err))
	}
}

func logChoice(logger hclog.Logger, dev *Device, why string) {
	info, err := dev.Info()
	if err != nil {
		logger.Warn("device chosen, its description is not available", "reason", why, "error", err)
		return
	}
	about := []any{"kind", info.Kind, "name", info.Name, "path", info.Path, "memory", info.BytesTotal}
	if info.Devices > 1 {
		about = append(about, "gpus", info.Devices)
	}
	if info.PhysicalTotal != nil {
		about = append(about, "memory_of_device", *info.PhysicalTotal)
	}
	if info.ComputeMajor > 0 {
		about = append(about, "compute_capability", fmt.Sprintf("%d.%d", info.ComputeMajor, info.ComputeMinor))
	}
	logger.Info("device chosen", append(about, "reason", why)...)
}
