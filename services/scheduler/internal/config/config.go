package config

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

// maxQueue bounds --max-queue: a million goroutines and streams take about 30 GB.
const maxQueue = 1 << 20

// maxProcessors is above the number that any machine has.
const maxProcessors = 1 << 12

// Config is the scheduler's configuration.
type Config struct {
	app.Flags
	// Workers are host:port, unix:PATH or dns:///name:port; at least one.
	Workers []string
	// MaxInFlight bounds the requests that one worker gets from this process at once; 0 means
	// unbounded.
	MaxInFlight int64
	// LoadOnDemand loads a model that no worker serves when a request names it.
	LoadOnDemand bool
	// LoadTimeout bounds how long a request waits for that; (0, 24 h].
	LoadTimeout time.Duration
	// Stale is how long a worker may be silent before it counts as lost; [1 s, 1 min].
	Stale time.Duration
	// FailoverWait is how long a stream that lost its worker waits for another one, unless its call
	// has a deadline; [1 ms, 1 h].
	FailoverWait time.Duration
	// InexactFailover is what happens to a stream when no worker of its class is left: Continue or
	// Refuse.
	InexactFailover string
	// MaxHeldBytes bounds the requests that are held for their streams; at least one of the
	// largest.
	MaxHeldBytes int64
	// MaxQueue bounds the requests that wait for slots of one model; [0, 1048576].
	MaxQueue int
	// MaxQueueTime is how long a call waits for its first slot; 0: as long as its caller does, else
	// [1 ms, 24 h].
	MaxQueueTime time.Duration
	// MaxVectorCalls bounds the calls of VectorService that run at once; [1, 1048576].
	MaxVectorCalls int64
	// MaxVectorBytes bounds the messages that these calls hold; at least those of one training.
	MaxVectorBytes int64
	// WorkerGrace is how long a model may be without a worker before its requests are refused; [0,
	// 1 min].
	WorkerGrace time.Duration
	// Processors is how many processors are used; 0: as many as the load needs, unless GOMAXPROCS
	// is set; see FollowsLoad.
	Processors int
	// CPUProfile is a file for a profile of the whole run; empty: none.
	CPUProfile string
	// ConsoleListen is where the console is served to browsers; empty: nowhere.
	ConsoleListen string
}

// Values of InexactFailover.
const (
	Continue = "continue"
	Refuse   = "refuse"
)

// defaultMaxHeldBytes is five thousand requests of 220 kB.
const defaultMaxHeldBytes = 1 << 30

// Register puts the flags on fs and reads the environment. After fs is parsed, call Validate.
func (c *Config) Register(fs *pflag.FlagSet) {
	c.Telemetry = telemetry.FromEnvironment(os.Getenv)
	c.Flags.Register(fs, app.Defaults{Listen: "127.0.0.1:7070", MetricsExample: "127.0.0.1:9070"})
	c.Transport.AddClientFlags(fs)
	c.Auth.AddClientFlags(fs, "worker-token-file", "workers")
	fs.StringSliceVar(&c.Workers, "workers", nil, "workers, separated by commas: host:port, unix:PATH, or dns:///name:port for all addresses of a name")
	fs.Int64Var(&c.MaxInFlight, "max-in-flight", 16384, "requests one worker gets from this process at once; 0: no limit")
	fs.BoolVar(&c.LoadOnDemand, "load-on-demand", false, "load a model that no worker serves when a request names it, and let the request wait")
	fs.DurationVar(&c.LoadTimeout, "load-timeout", 5*time.Minute, "longest wait of a request for the load of its model; the load itself continues; with --load-on-demand")
	fs.DurationVar(&c.Stale, "stale", 1600*time.Millisecond, "silence after which a worker counts as lost and its streams are resumed elsewhere; up to 1.6 times as long if its own steps take longer")
	fs.DurationVar(&c.FailoverWait, "failover-wait", relay.DefaultFailoverWait, "longest wait of a stream for another worker when its own is lost, unless its call has a deadline")
	fs.StringVar(&c.InexactFailover, "inexact-failover", Continue, "when no worker of a stream's class is left: continue on another class and report it, or refuse")
	fs.Int64Var(&c.MaxHeldBytes, "max-held-bytes", defaultMaxHeldBytes, "bytes of requests held until their streams end, so that another worker can resume them; requests beyond it are refused")
	fs.IntVar(&c.MaxQueue, "max-queue", admission.DefaultMaxQueue, "requests that may wait for slots of one model at once; 0: none waits")
	fs.DurationVar(&c.MaxQueueTime, "max-queue-time", admission.DefaultMaxQueueTime, "longest wait of a call in the scheduler for its first slot on a worker; then it is refused, unless its deadline comes first; 0: no limit")
	fs.Int64Var(&c.MaxVectorCalls, "max-vector-calls", vectors.DefaultMaxCalls, "calls that train, put, encode or decode at once, in addition to those of models; more are refused")
	fs.Int64Var(&c.MaxVectorBytes, "max-vector-bytes", vectors.DefaultMaxBytes, "bytes of messages that such calls hold; calls beyond it are refused")
	fs.DurationVar(&c.WorkerGrace, "worker-grace", admission.DefaultGrace, "how long a model may be without a worker before its requests are refused, or it is loaded elsewhere")
	fs.IntVar(&c.Processors, "processors", 0, "processors to use; 0: as many as the load needs, or $GOMAXPROCS if set")
	fs.StringVar(&c.CPUProfile, "cpu-profile", "", "file for a CPU profile of the whole run (default: none)")
	fs.StringVar(&c.ConsoleListen, "console-listen", "", "address to serve a page for operators on, such as 127.0.0.1:8070; beyond this machine it needs --tls-cert, and --auth-keys or --tls-client-ca (default: none)")
}

// Validate returns everything that is wrong, each error naming its flag. They wrap app.ErrUsage.
func (c *Config) Validate() error {
	wrong := []error{c.Check(c.ConsoleListen)}
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	c.checkConsole(refuse)
	if len(c.Workers) == 0 {
		refuse("--workers names none: give at least one host:port or dns:///name:port")
	}
	for _, w := range c.Workers {
		if err := fleet.CheckTarget(w); err != nil {
			refuse("--workers: %w", err)
		} else if err := errors.Join(c.Transport.CheckDial("--workers", w), c.Auth.CheckDial(&c.Transport, "--workers", w)); err != nil {
			refuse("%w", err)
		}
	}
	if c.MaxInFlight < 0 {
		refuse("--max-in-flight is %d: must not be negative", c.MaxInFlight)
	}
	if c.LoadTimeout <= 0 || c.LoadTimeout > 24*time.Hour {
		refuse("--load-timeout is %v: must be in (0, 24h]", c.LoadTimeout)
	}
	if c.Stale < time.Second || c.Stale > time.Minute { // four heartbeats at least
		refuse("--stale is %v: must be in [1s, 1m]", c.Stale)
	}
	if c.FailoverWait < time.Millisecond || c.FailoverWait > time.Hour {
		refuse("--failover-wait is %v: must be in [1ms, 1h]", c.FailoverWait)
	}
	if c.InexactFailover != Continue && c.InexactFailover != Refuse {
		refuse("--inexact-failover is %q: must be %s or %s", c.InexactFailover, Continue, Refuse)
	}
	if c.MaxHeldBytes < rpc.DefaultMaxReceiveBytes {
		refuse("--max-held-bytes is %d: must be at least %d, one request of the largest", c.MaxHeldBytes, rpc.DefaultMaxReceiveBytes)
	}
	if c.MaxQueue < 0 || c.MaxQueue > maxQueue {
		refuse("--max-queue is %d: must be in [0, %d]", c.MaxQueue, maxQueue)
	}
	if c.MaxQueueTime != 0 && (c.MaxQueueTime < time.Millisecond || c.MaxQueueTime > 24*time.Hour) {
		refuse("--max-queue-time is %v: must be 0 or in [1ms, 24h]", c.MaxQueueTime)
	}
	if c.MaxVectorCalls < 1 || c.MaxVectorCalls > maxQueue {
		refuse("--max-vector-calls is %d: must be in [1, %d]", c.MaxVectorCalls, maxQueue)
	}
	if c.MaxVectorBytes < vectors.MinMaxBytes {
		refuse("--max-vector-bytes is %d: must be at least %d, the messages of one training", c.MaxVectorBytes, vectors.MinMaxBytes)
	}
	if c.WorkerGrace < 0 || c.WorkerGrace > time.Minute {
		refuse("--worker-grace is %v: must be in [0, 1m]", c.WorkerGrace)
	}
	if c.Processors < 0 || c.Processors > maxProcessors {
		refuse("--processors is %d: must be in [0, %d]", c.Processors, maxProcessors)
	}
	if c.DrainTimeout < 0 || c.DrainTimeout > time.Hour {
		refuse("--drain-timeout is %v: must be in [0, 1h]", c.DrainTimeout)
	}
	return app.Usage(errors.Join(wrong...))
}

// checkConsole refuses a console that strangers can reach. --insecure makes no exception: it lets
// others read prompts, but a console in plaintext would let them act with the tokens that they
// read.
func (c *Config) checkConsole(refuse func(format string, args ...any)) {
	const elsewhere = "or listen on 127.0.0.1 and reach it with ssh -L"
	switch {
	case c.ConsoleListen == "" || transport.IsLocal(c.ConsoleListen):
	case c.Transport.Cert == "":
		refuse("--console-listen %q: would show other machines tokens and prompts in plaintext: give --tls-cert and --tls-key, "+elsewhere, c.ConsoleListen)
	case c.Auth.Keys == "" && c.Transport.ClientCA == "":
		refuse("--console-listen %q: would let anyone who can connect unload models: give --auth-keys or --tls-client-ca, "+elsewhere, c.ConsoleListen)
	}
}

// FollowsLoad reports whether the number of processors follows the load. It reads the environment:
// the runtime has obeyed GOMAXPROCS before any flag was read, and a number that is set there must
// stay.
func (c *Config) FollowsLoad() bool { return c.Processors == 0 && os.Getenv("GOMAXPROCS") == "" }

// TunesHeap reports whether the collector's target follows the live heap, unless GOGC or GOMEMLIMIT
// sets it.
func (c *Config) TunesHeap() bool { return os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" }

// Vectors returns the part of the configuration that the calls of VectorService need.
func (c *Config) Vectors() vectors.Config {
	v := vectors.Config{
		MaxCalls: c.MaxVectorCalls, MaxBytes: c.MaxVectorBytes, FailoverWait: c.FailoverWait, Grace: c.WorkerGrace,
	}
	if c.LoadOnDemand {
		v.OnDemand = c.LoadTimeout
	}
	return v
}

// Fields returns the configuration as log fields.
func (c *Config) Fields() []any {
	return []any{
		"listen", c.Listen, "workers", c.Workers, "max_in_flight", c.MaxInFlight,
		"load_on_demand", c.LoadOnDemand, "load_timeout", c.LoadTimeout,
		"stale", c.Stale,
		"failover_wait", c.FailoverWait, "inexact_failover", c.InexactFailover, "max_held_bytes", c.MaxHeldBytes,
		"max_vector_calls", c.MaxVectorCalls, "max_vector_bytes", c.MaxVectorBytes,
		"max_queue", c.MaxQueue, "max_queue_time", c.MaxQueueTime, "worker_grace", c.WorkerGrace,
		"drain_timeout", c.DrainTimeout, "send_stall", c.SendStall, "processors", c.Processors,
		"metrics_listen", c.MetricsListen, "metrics_tls", c.MetricsTLS, "pprof_listen", c.PprofListen, "console_listen", c.ConsoleListen,
		"load_reports", c.LoadReports,
		"traces", c.Telemetry.Traces, "measures_sent", c.Telemetry.Metrics, "log_level", c.LogLevel, "log_json", c.LogJSON,
		"tls_cert", c.Transport.Cert, "tls_ca", c.Transport.CA, "tls_client_ca", c.Transport.ClientCA, "insecure", c.Transport.Insecure,
		"auth_keys", c.Auth.Keys, "worker_token_file", c.Auth.TokenFile,
	}
}
