package device

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// EngineVariable is the environment variable with the default of --engine-path.
const EngineVariable = "MILLRACE_ENGINE_PATH"

// mostThreads is far more than the cores of any machine. A larger number is a mistake.
const mostThreads = 1024

// Flags select a device and how much of it to use.
type Flags struct {
	// auto, cpu, gpu or cuda, cuda:N, cuda:N,M (GPUs that hold models together), or sim with
	// options
	Name        string
	CPUPath     string // "": the best
	EnginePath  string // files or folders, separated by colons
	AnyBuild    bool
	Threads     int    // 0: what quota and affinity allow
	MemoryLimit string // see ParseAmount; "": the engine's default
	PoolLimit   string // "0" for no pool, or see ParseAmount; "": the engine's default
}

// Register adds the flags to f. Call Validate after f is parsed.
func (d *Flags) Register(f *pflag.FlagSet) {
	f.StringVar(&d.Name, "device", "auto", "auto, cpu, gpu or cuda (the first usable GPU), cuda:N, cuda:N,M (GPUs that hold every model together), or sim[:step=1ms,prefill=2us,decode=20us,memory=BYTES,two-classes=true]")
	f.StringVar(&d.CPUPath, "cpu-path", "", "instruction-set path of the CPU engine: amx, avx512bf16, avx512vnni, avx2 or portable (default: the best)")
	f.StringVar(&d.EnginePath, "engine-path", "", "file or folder of libmillrace_cuda.so (default: $"+EngineVariable+", the binary's folder, ../lib, ../cuda)")
	f.BoolVar(&d.AnyBuild, "engine-any-build", false, "take a CUDA engine that was built from other sources than this program")
	f.IntVar(&d.Threads, "threads", 0, "threads of the CPU engine; 0: what quota and affinity allow")
	f.StringVar(&d.MemoryLimit, "memory-limit", "", "device memory to use at most: bytes, such as 8GiB, or a fraction of the default, such as 0.5 (default: on a GPU the free memory less a margin, else 80 % of the available memory)")
	f.StringVar(&d.PoolLimit, "pool-limit", "", "freed device memory to keep for reuse at most: bytes, such as 8GiB, or a share of the memory limit, such as 0.5 or 50%; 0: none (default: of a GPU 80 %, of a CPU an eighth, at most 256 MiB)")
}

// Validate checks all values and returns all errors. It reads defaults from the environment. getenv
// is os.Getenv.
func (d *Flags) Validate(getenv func(string) string) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if d.Threads < 0 || d.Threads > mostThreads {
		fail("--threads %d: want 0 to %d", d.Threads, mostThreads)
	}
	if _, err := ParseAmount(d.MemoryLimit); err != nil {
		fail("--memory-limit %q: %w", d.MemoryLimit, err)
	}
	if _, err := parsePool(d.PoolLimit); err != nil {
		fail("--pool-limit %q: %w", d.PoolLimit, err)
	}
	if d.Simulated() {
		if _, err := sim.ParseOptions(d.Name); err != nil {
			fail("--device: %w", err)
		}
	} else if err := (native.Options{Device: d.Name, Path: d.CPUPath}).Check(); err != nil {
		fail("--device: %w", err)
	}
	if d.EnginePath == "" {
		d.EnginePath = getenv(EngineVariable)
	}
	return errors.Join(errs...)
}

// Simulated reports whether the device is the sim engine.
func (d *Flags) Simulated() bool { return d.Name == "sim" || strings.HasPrefix(d.Name, "sim:") }

// Arguments returns flags with which another program opens the same device.
func (d *Flags) Arguments() []string {
	return []string{
		"--device=" + d.Name, "--cpu-path=" + d.CPUPath, "--engine-path=" + d.EnginePath, fmt.Sprint("--engine-any-build=", d.AnyBuild),
		fmt.Sprint("--threads=", d.Threads), "--memory-limit=" + d.MemoryLimit, "--pool-limit=" + d.PoolLimit,
	}
}
