package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/device"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
)

// leastVerifyInterval keeps checks of resident weights from taking a device for themselves.
const leastVerifyInterval = 100 * time.Millisecond

// leastIdle keeps a model that was just loaded from going before the requests that it was loaded for have come.
const leastIdle = time.Second

// A shared step has at least as many prompt tokens as cost nothing to speak of, however short it is wanted; and whoever streams
// an answer notices one that is longer.
const (
	leastStepTarget = time.Millisecond
	mostStepTarget  = 10 * time.Second
)

// A call may have waited as long in a scheduler's queue before.
const (
	defaultMaxQueueTime = 5 * time.Minute
	leastQueueTime      = time.Millisecond
	mostQueueTime       = 24 * time.Hour
)

// VLLM is the value of MetricsAliases that gives measures the names of vLLM too.
const VLLM = "vllm"

// Values of Defaults.
const (
	Contract  = "contract"
	ModelFile = "model"
)

// Config of a worker.
type Config struct {
	Listen         string
	Transport      transport.Flags
	Auth           auth.Flags
	Device         device.Flags
	Models         string
	Load           []string
	WorkerID       string
	MaxSequences   int           // 0: by device
	MaxBatched     int           // 0: by device
	StepTarget     time.Duration // 0: by device
	MaxQueueTime   time.Duration // 0: as long as callers wait
	SwapSpace      string        // bytes, or bytes with a unit; see Swap
	VerifyInterval time.Duration
	Vectors        Vectors
	IdleUnload     time.Duration // 0: never
	EvictIdle      time.Duration // 0: never
	Defaults       string        // Contract or ModelFile; empty: Contract
	DrainTimeout   time.Duration
	SendStall      time.Duration // how long an answer may not move before its call ends
	LogLevel       string
	LogJSON        bool
	LogPrompts     bool   // whether the log has what callers ask for
	MetricsListen  string // empty: measures are served nowhere
	MetricsTLS     bool   // whether they are served over TLS
	MetricsAliases string // VLLM; empty: none
	PprofListen    string // empty: profiles are served nowhere
	LoadReports    bool   // whether balancers are told of load, as ORCA has it
	Telemetry      telemetry.Settings
	SelfTest       bool
}

// Register puts the flags on f; after f is parsed, Validate.
func (c *Config) Register(f *pflag.FlagSet) {
	c.Telemetry = telemetry.FromEnvironment(os.Getenv)
	f.StringVar(&c.Listen, "listen", "127.0.0.1:7071", "address to serve on, host:port or unix:PATH")
	c.Transport.Serves(f)
	c.Auth.Serves(f)
	c.Device.Register(f)
	f.StringVar(&c.Models, "models", "models", "folder of model files NAME.gguf")
	f.StringArrayVar(&c.Load, "load", nil, "model to load before the worker is ready, and to keep until it is unloaded; may be repeated")
	f.StringVar(&c.WorkerID, "worker-id", "", "name that is stable over restarts (default: host name and port)")
	f.StringVar(&c.Device.MemoryLimit, "vram-limit", "", "the same as --memory-limit")
	f.IntVar(&c.MaxSequences, "max-sequences", 0, "sequences of a model in one batch; 0: 256 on a GPU of 40 GB or more, 64 on a smaller one, 16 on a CPU, and fewer where the cache has no 256 tokens for each")
	f.IntVar(&c.MaxBatched, "max-batched-tokens", 0, "tokens of one step; 0: 4096 on a GPU, else 512")
	f.DurationVar(&c.StepTarget, "step-target", 0, "wanted length of a step that computes prompts while others decode, who all wait for it, and the longest that short prompts wait to share one; 0: 40ms on a GPU, 250ms on a CPU")
	f.DurationVar(&c.MaxQueueTime, "max-queue-time", defaultMaxQueueTime, "longest wait of a call at the worker for its first place in a batch; then it is refused, unless its deadline comes sooner; 0: no limit")
	f.StringVar(&c.SwapSpace, "swap-space", "", "host memory for the cache of preempted sequences, of all models together: bytes, such as 8GiB; 0: they are computed again (default: 4GiB on a GPU, 0 on a CPU)")
	f.DurationVar(&c.VerifyInterval, "verify-interval", time.Minute, "time from one check of the loaded models' bytes on the device to the next; 0: they are checked at load only")
	f.DurationVar(&c.IdleUnload, "idle-unload", 0, "time without requests after which a model is unloaded, those of --load and pinned ones aside; 0: never")
	f.DurationVar(&c.EvictIdle, "evict-idle", 0, "time without requests after which such a model may be unloaded for one that would not fit, the longest unused first; models that do not fit together take each other's place no oftener; 0: never")
	f.StringVar(&c.Defaults, "sampling-defaults", Contract, "what unset knobs of a request have: contract, or model: what the model's file recommends where it does; equal requests may then give other tokens than at workers without it, so the class of such a model is another one")
	c.Vectors.register(f)
	f.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "how long running requests may go on after SIGTERM")
	f.DurationVar(&c.SendStall, "send-stall", rpc.DefaultSendStall, "how long a caller may read nothing of an answer that waits for it; then its call ends")
	f.StringVar(&c.MetricsListen, "metrics-listen", "", "address to serve Prometheus measures and health checks on, such as 127.0.0.1:9071: /metrics, /healthz, /readyz (default: none)")
	f.StringVar(&c.MetricsAliases, "metrics-aliases", "", "give measures under the names of another server too, for its dashboards: vllm (default: none)")
	f.BoolVar(&c.MetricsTLS, "metrics-tls", false, "serve measures and health checks over TLS with the certificate of --tls-cert, measures then only to callers that --tls-client-ca and --tls-client-san accept")
	f.StringVar(&c.PprofListen, "pprof-listen", "", "loopback address or unix:PATH to serve /debug/pprof/ on, such as 127.0.0.1:6060 (default: none)")
	f.BoolVar(&c.LoadReports, "load-reports", true, "tell balancers in front how much there is to do, by ORCA: in the trailers of generations, and by stream")
	f.StringVar(&c.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&c.LogJSON, "log-json", false, "log in JSON")
	f.BoolVar(&c.LogPrompts, "log-prompts", false, "write the beginning of every prompt to the log, for finding mistakes with prompts of your own: whoever reads the log reads what callers send")
	f.BoolVar(&c.SelfTest, "self-test", false, "check the device against the reference, print one table, and exit")
}

// Validate checks every value and fills in what depends on the machine.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := c.Device.Validate(os.Getenv); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(c.Transport.CheckListen(c.Listen), c.Transport.Check(), c.Auth.Check()); err != nil {
		errs = append(errs, err)
	}
	if c.MaxSequences < 0 || c.MaxSequences > 1024 {
		fail("--max-sequences %d: want 1 to 1024, or 0 for what the device can use", c.MaxSequences)
	}
	if c.MaxBatched != 0 && (c.MaxBatched < c.MaxSequences || c.MaxBatched > 1<<16) {
		fail("--max-batched-tokens %d: want 0, or at least --max-sequences (%d) and at most 65536", c.MaxBatched, c.MaxSequences)
	}
	if c.StepTarget != 0 && (c.StepTarget < leastStepTarget || c.StepTarget > mostStepTarget) {
		fail("--step-target %v: want 0 for what suits the device, or %v to %v", c.StepTarget, leastStepTarget, mostStepTarget)
	}
	if c.MaxQueueTime != 0 && (c.MaxQueueTime < leastQueueTime || c.MaxQueueTime > mostQueueTime) {
		fail("--max-queue-time %v: want 0 for no limit, or %v to %v", c.MaxQueueTime, leastQueueTime, mostQueueTime)
	}
	if _, err := parseSwap(c.SwapSpace); err != nil {
		fail("--swap-space %q: %w", c.SwapSpace, err)
	}
	if err := (monitor.Addresses{Listen: c.Listen, Metrics: c.MetricsListen, Profiles: c.PprofListen}).Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := monitor.CheckSecure(c.MetricsTLS, c.MetricsListen, c.Transport.Cert); err != nil {
		errs = append(errs, err)
	}
	if err := c.Telemetry.Check(); err != nil {
		errs = append(errs, err)
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
	if err := rpc.CheckSendStall(c.SendStall); err != nil {
		errs = append(errs, err)
	}
	if c.DrainTimeout < 0 {
		fail("--drain-timeout %v: want no negative time", c.DrainTimeout)
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		fail("--log-level %q: want trace, debug, info, warn or error", c.LogLevel)
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
	return errors.Join(errs...)
}

// Swap is the host memory for preempted sequences in bytes: 0 leaves it to the device, less than 0 is none.
func (c *Config) Swap() int64 {
	bytes, _ := parseSwap(c.SwapSpace) // checked by Validate
	return bytes
}
