package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// leastVerifyInterval keeps checks of resident weights from taking a device for themselves.
const leastVerifyInterval = 100 * time.Millisecond

// Config of a worker.
type Config struct {
	Listen         string
	Device         string // auto, cpu, gpu, cuda:N, or sim with options
	CPUPath        string
	EnginePath     string
	EngineAnyBuild bool
	Threads        int
	Models         string
	Load           []string
	WorkerID       string
	MemoryLimit    string // bytes, bytes with a unit, or a fraction; see Limit
	MaxSequences   int
	MaxBatched     int
	VerifyInterval time.Duration
	DrainTimeout   time.Duration
	LogLevel       string
	LogJSON        bool
	SelfTest       bool
}

// Register puts the flags on f; after f is parsed, Validate.
func (c *Config) Register(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "listen", "127.0.0.1:7071", "address to serve on, host:port or unix:PATH")
	f.StringVar(&c.Device, "device", "auto", "auto, cpu, gpu, cuda:N, or sim[:step=1ms,prefill=2us,decode=20us,memory=BYTES]")
	f.StringVar(&c.CPUPath, "cpu-path", "", "instruction-set path of the CPU engine: avx512bf16, avx512vnni, avx2 or portable (default: the best)")
	f.StringVar(&c.EnginePath, "engine-path", "", "file or folder of libmillrace_cuda.so (default: $MILLRACE_ENGINE_PATH, beside the binary, ../lib, ../cuda)")
	f.BoolVar(&c.EngineAnyBuild, "engine-any-build", false, "take a CUDA engine that was built from other sources than this program")
	f.IntVar(&c.Threads, "threads", 0, "threads of the CPU engine; 0: what quota and affinity allow")
	f.StringVar(&c.Models, "models", "models", "folder of model files NAME.gguf")
	f.StringArrayVar(&c.Load, "load", nil, "model to load before the worker is ready; may be repeated")
	f.StringVar(&c.WorkerID, "worker-id", "", "name that is stable over restarts (default: host name and port)")
	f.StringVar(&c.MemoryLimit, "memory-limit", "", "device memory to use at most: bytes, such as 8GiB, or a fraction of the default, such as 0.5 (default: of a GPU what is free but for a margin, else 80 % of what is available)")
	f.StringVar(&c.MemoryLimit, "vram-limit", "", "the same as --memory-limit")
	f.IntVar(&c.MaxSequences, "max-sequences", 16, "sequences of a model in one batch")
	f.IntVar(&c.MaxBatched, "max-batched-tokens", 0, "tokens of one step; 0: 4096 on a GPU, else 512")
	f.DurationVar(&c.VerifyInterval, "verify-interval", time.Minute, "time from one check of the loaded models' bytes on the device to the next; 0: they are checked at load only")
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "how long running requests may go on after SIGTERM")
	f.StringVar(&c.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&c.LogJSON, "log-json", false, "log in JSON")
	f.BoolVar(&c.SelfTest, "self-test", false, "check the device against the reference, print one table, and exit")
}

// Validate checks every value and fills in what depends on the machine.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Threads < 0 || c.Threads > 1024 {
		fail("--threads %d: want 0 to 1024", c.Threads)
	}
	if c.MaxSequences < 1 || c.MaxSequences > 1024 {
		fail("--max-sequences %d: want 1 to 1024", c.MaxSequences)
	}
	if c.MaxBatched != 0 && (c.MaxBatched < c.MaxSequences || c.MaxBatched > 1<<16) {
		fail("--max-batched-tokens %d: want 0, or at least --max-sequences (%d) and at most 65536", c.MaxBatched, c.MaxSequences)
	}
	if c.VerifyInterval != 0 && c.VerifyInterval < leastVerifyInterval {
		fail("--verify-interval %v: want 0 for none, or at least %v", c.VerifyInterval, leastVerifyInterval)
	}
	if c.DrainTimeout < 0 {
		fail("--drain-timeout %v: want no negative time", c.DrainTimeout)
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		fail("--log-level %q: want trace, debug, info, warn or error", c.LogLevel)
	}
	if _, err := parseLimit(c.MemoryLimit); err != nil {
		fail("--memory-limit %q: %w", c.MemoryLimit, err)
	}
	if c.Simulated() {
		if _, err := sim.ParseOptions(c.Device); err != nil {
			fail("--device: %w", err)
		}
	} else if err := (native.Options{Device: c.Device, Path: c.CPUPath}).Check(); err != nil {
		fail("--device: %w", err)
	}
	if !c.SelfTest {
		if info, err := os.Stat(c.Models); err != nil || !info.IsDir() {
			fail("--models %q: there is no such folder", c.Models)
		}
	}
	if c.EnginePath == "" {
		c.EnginePath = os.Getenv("MILLRACE_ENGINE_PATH")
	}
	if c.WorkerID == "" {
		host, err := os.Hostname()
		if err != nil {
			fail("no host name, give --worker-id: %w", err)
		}
		c.WorkerID = host + ":" + c.Listen[strings.LastIndexByte(c.Listen, ':')+1:]
	}
	return errors.Join(errs...)
}

// Simulated says whether the device is the sim engine.
func (c *Config) Simulated() bool { return c.Device == "sim" || strings.HasPrefix(c.Device, "sim:") }

// Limit is the device memory to use, given how much there is; 0 leaves it to the engine.
func (c *Config) Limit(total uint64) uint64 {
	limit, _ := parseLimit(c.MemoryLimit) // checked by Validate
	if limit.fraction {
		return max(1, uint64(limit.value*float64(total)))
	}
	return uint64(limit.value)
}

// Fraction says whether the limit depends on how much memory there is.
func (c *Config) Fraction() bool {
	limit, _ := parseLimit(c.MemoryLimit)
	return limit.fraction
}

// amount is a number of bytes, or a fraction above 0 and at most 1; the zero value is none.
type amount struct {
	value    float64
	fraction bool
}

func parseLimit(s string) (amount, error) {
	if s == "" {
		return amount{}, nil
	}
	digits, unit := s, 1.0
	for suffix, size := range map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40} {
		if before, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = before, size
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return amount{}, errors.New("want bytes, such as 8GiB, or a fraction between 0 and 1")
	}
	switch bytes := v * unit; {
	case digits == s && v <= 1:
		return amount{v, true}, nil
	case bytes < 1:
		return amount{}, errors.New("is less than a byte")
	case bytes > 1<<62:
		return amount{}, errors.New("is more than any device has")
	default:
		return amount{value: bytes}, nil
	}
}
