package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/device"
	"github.com/millrace/millrace/services/internal/telemetry"
)

// leastVerifyInterval bounds the share of the device's time that checks of resident weights take.
const leastVerifyInterval = 100 * time.Millisecond

// leastIdle keeps a model that was just loaded until the requests that it was loaded for have
// arrived.
const leastIdle = time.Second

// Bounds of --step-target. A step carries some prompt tokens however short it is wanted, because
// their cost is negligible. A caller notices a step that is longer than the upper bound.
const (
	leastStepTarget = time.Millisecond
	mostStepTarget  = 10 * time.Second
)

// Bounds of --max-queue-time. The default is the scheduler's: a call may have waited as long in its
// queue before.
const (
	defaultMaxQueueTime = 5 * time.Minute
	leastQueueTime      = time.Millisecond
	mostQueueTime       = 24 * time.Hour
)

// VLLM is the value of MetricsAliases that exports metrics under vLLM's names too.
const VLLM = "vllm"

// Values of Defaults.
const (
	Contract  = "contract"
	ModelFile = "model"
)

// Config of a worker.
type Config struct {
	app.Flags
	Device         device.Flags
	Models         string
	Load           []string
	WorkerID       string
	MaxSequences   int           // 0: by device
	MaxBatched     int           // 0: by device
	StepTarget     time.Duration // 0: by device
	MaxQueueTime   time.Duration // 0: as long as callers wait
	SwapSpace      string        // bytes, or bytes with a unit; see Swap
	HostCache      string        // bytes, or bytes with a unit; see Cache
	VerifyInterval time.Duration
	Vectors        Vectors
	IdleUnload     time.Duration // 0: never
	EvictIdle      time.Duration // 0: never
	Defaults       string        // Contract or ModelFile; empty: Contract
	LogPrompts     bool          // log the beginning of every prompt
	MetricsAliases string        // VLLM; empty: none
	SelfTest       bool
}

// Register puts the flags on f and reads the environment. After f is parsed, call Validate.
func (c *Config) Register(f *pflag.FlagSet) {
	c.Telemetry = telemetry.FromEnvironment(os.Getenv)
	c.Flags.Register(f, app.Defaults{Listen: "127.0.0.1:7071", MetricsExample: "127.0.0.1:9071", LoadReports: true})
	c.Device.Register(f)
	f.StringVar(&c.Models, "models", "models", "folder of model files NAME.gguf")
	f.StringArrayVar(&c.Load, "load", nil, "model to load before the worker is ready, and to keep until it is unloaded; may be repeated")
	f.StringVar(&c.WorkerID, "worker-id", "", "name that is stable over restarts (default: host name and port)")
	f.StringVar(&c.Device.MemoryLimit, "vram-limit", "", "the same as --memory-limit")
	f.IntVar(&c.MaxSequences, "max-sequences", 0, "sequences of a model in one batch; 0: 256 on a GPU of 40 GB or more, 64 on a smaller one, 16 on a CPU, and fewer where the cache has no 256 tokens for each")
	f.IntVar(&c.MaxBatched, "max-batched-tokens", 0, "tokens of one step; 0: 4096 on a GPU, else 512; a model of whole texts: its context")
	f.DurationVar(&c.StepTarget, "step-target", 0, "target length of a step that computes prompts while other sequences decode and wait for it, and the longest that short prompts wait to share a step; 0: 50ms on a GPU, 250ms on a CPU")
	f.DurationVar(&c.MaxQueueTime, "max-queue-time", defaultMaxQueueTime, "longest wait of a call at the worker for its first slot in a batch; then it is refused, unless its deadline comes first; 0: no limit")
	f.StringVar(&c.SwapSpace, "swap-space", "", "host memory for the KV blocks of preempted sequences, of all models together: bytes, such as 8GiB; 0: they are computed again (default: 4GiB on a GPU, 0 on a CPU)")
	f.StringVar(&c.HostCache, "host-cache", "", "host memory for prefixes that the device's cache evicts, of all models together: bytes, such as 64GiB; they come back by copies instead of being computed again. The memory is taken from the system 64 MiB at a time as prefixes are evicted, pinned if the device is a GPU, and given back when the model is unloaded; an evicted KV block is copied before a step overwrites it; the worker refuses to start with more than the host and its container have; 0 or empty: none")
	f.DurationVar(&c.VerifyInterval, "verify-interval", time.Minute, "time between two checks of the loaded models' bytes on the device; 0: they are checked at load only")
	f.DurationVar(&c.IdleUnload, "idle-unload", 0, "time without requests after which a model is unloaded, unless it is pinned or named by --load; 0: never")
	f.DurationVar(&c.EvictIdle, "evict-idle", 0, "time without requests after which such a model may be unloaded to free memory for another, the least recently used first; models that do not fit together replace each other no more often than that; 0: never")
	f.StringVar(&c.Defaults, "sampling-defaults", Contract, "source of a request's unset sampling fields: contract, or model for the values that the model's file recommends; equal requests may then give other tokens than at workers without it, so such a model has another class")
	c.Vectors.register(f)
	f.StringVar(&c.MetricsAliases, "metrics-aliases", "", "export metrics under the names of another server too, for its dashboards: vllm (default: none)")
	f.BoolVar(&c.LogPrompts, "log-prompts", false, "write the beginning of every prompt to the log, to debug prompts of your own: readers of the log then read the prompts of callers")
	f.BoolVar(&c.SelfTest, "self-test", false, "check the device against the reference, print one table, and exit")
}

// Validate checks every value and fills in what depends on the machine. Its errors name their flags
// and wrap app.ErrUsage.
func (c *Config) Validate() error {
	errs := []error{c.Device.Validate(os.Getenv), c.Check("")}
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.MaxSequences < 0 || c.MaxSequences > 1024 {
		fail("--max-sequences %d: want 1 to 1024, or 0 for the device's default", c.MaxSequences)
	}
	if c.MaxBatched != 0 && (c.MaxBatched < c.MaxSequences || c.MaxBatched > 1<<16) {
		fail("--max-batched-tokens %d: want 0, or at least --max-sequences (%d) and at most 65536", c.MaxBatched, c.MaxSequences)
	}
	if c.StepTarget != 0 && (c.StepTarget < leastStepTarget || c.StepTarget > mostStepTarget) {
		fail("--step-target %v: want 0 for the device's default, or %v to %v", c.StepTarget, leastStepTarget, mostStepTarget)
	}
	if c.MaxQueueTime != 0 && (c.MaxQueueTime < leastQueueTime || c.MaxQueueTime > mostQueueTime) {
		fail("--max-queue-time %v: want 0 for no limit, or %v to %v", c.MaxQueueTime, leastQueueTime, mostQueueTime)
	}
	if _, err := parseSwap(c.SwapSpace); err != nil {
		fail("--swap-space %q: %w", c.SwapSpace, err)
	}
	if _, err := parseSwap(c.HostCache); err != nil {
		fail("--host-cache %q: %w", c.HostCache, err)
	}
	if c.MetricsAliases != "" && c.MetricsAliases != VLLM {
		fail("--metrics-aliases %q: want vllm, or nothing", c.MetricsAliases)
	}
	if c.VerifyInterval != 0 && c.VerifyInterval < leastVerifyInterval {
		fail("--verify-interval %v: want 0 for none, or at least %v", c.VerifyInterval, leastVerifyInterval)
	}
	if c.IdleUnload != 0 && c.IdleUnload < leastIdle {
		fail("--idle-unload %v: want 0 for never, or at least %v", c.IdleUnload, leastIdle)
	}
	if c.EvictIdle != 0 && c.EvictIdle < leastIdle {
		fail("--evict-idle %v: want 0 for never, or at least %v", c.EvictIdle, leastIdle)
	}
	if c.Defaults != Contract && c.Defaults != ModelFile {
		fail("--sampling-defaults %q: want contract or model", c.Defaults)
	}
	errs = append(errs, c.Vectors.validate(c.Models)...)
	if c.DrainTimeout < 0 {
		fail("--drain-timeout %v: want no negative time", c.DrainTimeout)
	}
	if !c.SelfTest {
		if err := checkModels(c.Models); err != nil {
			errs = append(errs, err)
		}
	}
	if c.WorkerID == "" {
		host, err := os.Hostname()
		if err != nil {
			fail("no host name, give --worker-id: %w", err)
		}
		c.WorkerID = host + ":" + c.Listen[strings.LastIndexByte(c.Listen, ':')+1:]
	}
	return app.Usage(errors.Join(errs...))
}

// Swap returns the host memory for preempted sequences in bytes. 0 leaves it to the device, less
// than 0 means none.
func (c *Config) Swap() int64 {
	bytes, _ := parseSwap(c.SwapSpace) // checked by Validate
	return bytes
}

// Cache returns the host memory for evicted prefixes in bytes; 0 or less: none.
func (c *Config) Cache() int64 {
	bytes, _ := parseSwap(c.HostCache) // checked by Validate
	return bytes
}

// ModelConfig returns the configuration of the models. observe may be nil.
func (c *Config) ModelConfig(observe func(string) batch.Observer) model.Config {
	verify := c.VerifyInterval
	if verify == 0 {
		verify = -1 // never; 0 would be the default
	}
	return model.Config{
		Dir: c.Models, MaxSequences: c.MaxSequences, MaxBatchedTokens: c.MaxBatched, VerifyInterval: verify,
		StepTarget: c.StepTarget, MaxQueueTime: c.MaxQueueTime, SwapSpace: c.Swap(), HostCache: c.Cache(), IdleUnload: c.IdleUnload, EvictIdle: c.EvictIdle,
		SamplingDefaults: c.Defaults == ModelFile, Observe: observe,
	}
}

// parseSwap parses an amount of host memory in bytes. It returns 0 for "", and -1 for "0".
func parseSwap(s string) (int64, error) {
	if v, err := strconv.ParseFloat(s, 64); err == nil && v == 0 {
		return -1, nil
	}
	a, err := device.ParseAmount(s)
	if err != nil || a.Fraction() {
		return 0, errors.New("want bytes, such as 8GiB, or 0 for none")
	}
	return int64(a.Of(0)), nil
}

// checkModels returns the problem of the value of --models, and a value that works.
func checkModels(path string) error {
	info, err := os.Stat(path)
	name, isModel := strings.CutSuffix(filepath.Base(path), ".gguf")
	if prefix, _, _, split := gguf.ParsePartName(filepath.Base(path)); split {
		name = prefix
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--models %q: there is no such folder: make it and put model files NAME.gguf there, or give the folder that has them", path)
	case err != nil:
		return fmt.Errorf("--models: %w", err)
	case info.IsDir():
		return nil
	case isModel:
		return fmt.Errorf("--models %q: is a file, want its folder: give --models %q --load %q", path, filepath.Dir(path), name)
	}
	return fmt.Errorf("--models %q: is a file, want a folder with model files NAME.gguf", path)
}
