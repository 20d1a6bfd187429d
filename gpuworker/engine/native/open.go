package native

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Options choose and size a device. The zero value is the best device of this machine with the engine's defaults.
type Options struct {
	// Device is "auto" (or empty), "cpu", "gpu" (the first GPU), or "cuda:N".
	Device string
	// Threads of the CPU engine; 0 = as many as the CPU quota and affinity allow. Never changes results.
	Threads int
	// BytesLimit is the ceiling of the device's ledger in bytes; 0 = the engine's default.
	BytesLimit uint64
	// PoolLimit is how many freed bytes the device keeps for reuse; 0 = the engine's default, NoPool = none.
	PoolLimit uint64
	// Path forces an instruction-set path of the CPU engine: "avx512bf16", "avx512vnni", "avx2" or "portable"; empty = the best.
	Path string
	// EnginePath lists files or folders, divided by colons, where the CUDA engine is looked for first.
	EnginePath string
}

// NoPool makes a device give freed bytes back at once.
const NoPool uint64 = math.MaxUint64

// choice is a parsed Options.Device.
type choice struct {
	auto, gpu bool
	index     int
}

func parseDevice(s string) (choice, error) {
	switch s {
	case "", "auto":
		return choice{auto: true}, nil
	case "cpu":
		return choice{}, nil
	case "gpu", "cuda":
		return choice{gpu: true}, nil
	}
	if n, ok := strings.CutPrefix(s, "cuda:"); ok {
		if index, err := strconv.ParseUint(n, 10, 15); err == nil {
			return choice{gpu: true, index: int(index)}, nil
		}
	}
	return choice{}, fmt.Errorf("device %q: want auto, cpu, gpu or cuda:N: %w", s, engine.ErrInvalid)
}

// Check refuses a device that has no such name, or a path that it cannot have, with ErrInvalid.
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

// Open opens a device. A GPU that is asked for by name and cannot be used is ErrNoDevice, naming the places looked at;
// "auto" takes a usable GPU or else the CPU, and logs in one line which and why.
func Open(opts Options, logger hclog.Logger) (engine.Device, error) {
	want, err := opts.choice()
	if err != nil {
		return nil, err
	}
	if want.gpu {
		return openGPU(opts, want.index)
	}
	why := "asked for"
	if want.auto {
		switch dev, err := autoGPU(opts); {
		case err == nil:
			logChoice(logger, dev, "usable CUDA engine "+dev.t.from)
			return dev, nil
		case errors.Is(err, engine.ErrNoDevice):
			why = err.Error()
		default:
			return nil, err
		}
	}
	t, err := embedded()
	if err != nil {
		return nil, err
	}
	dev, err := t.open(0, opts)
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	if want.auto {
		logChoice(logger, dev, why)
	}
	return dev, nil
}

func autoGPU(opts Options) (*Device, error) {
	if opts.Path != "" {
		return nil, fmt.Errorf("instruction-set path %q is the CPU's: %w", opts.Path, engine.ErrNoDevice)
	}
	return openGPU(opts, 0)
}

// openGPU opens GPU index through the library.
func openGPU(opts Options, index int) (*Device, error) {
	binary, err := os.Executable()
	if err != nil {
		binary = "" // the folders beside it are then not looked at
	}
	t, err := library(places(opts.EnginePath, binary))
	if err != nil {
		return nil, err
	}
	n, err := t.deviceCount()
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w: %w", t.from, engine.ErrNoDevice, err)
	}
	if index >= n {
		return nil, fmt.Errorf("engine %s: cuda:%d does not exist, this machine has %d usable GPUs: %w", t.from, index, n,
			engine.ErrNoDevice)
	}
	dev, err := t.open(index, opts)
	if err != nil {
		return nil, fmt.Errorf("engine %s: %w", t.from, err)
	}
	return dev, nil
}

func logChoice(logger hclog.Logger, dev *Device, why string) {
	info, err := dev.Info()
	if err != nil {
		logger.Warn("device chosen, its description is not available", "reason", why, "error", err)
		return
	}
	logger.Info("device chosen", "kind", info.Kind, "name", info.Name, "path", info.Path, "reason", why)
}
