package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

// ErrInvalid says that a flag has a value that it cannot have.
var ErrInvalid = errors.New("invalid configuration")

// maxQueue bounds --max-queue: so many goroutines and streams are some 30 GB.
const maxQueue = 1 << 20

// maxProcessors is above every machine's.
const maxProcessors = 1 << 12

// Config is the scheduler's configuration.
type Config struct {
	// Listen is host:port or unix:PATH.
	Listen string
	// Workers are host:port, unix:PATH or dns:///name:port; at least one.
	Workers []string
	// Transport is how callers and workers are spoken to.
	Transport transport.Flags
	// Auth is who may call, and the token that workers are shown.
	Auth auth.Flags
	// MaxInFlight is how many requests one worker gets from this process at once; 0 is no bound.
	MaxInFlight int64
	// LoadOnDemand is whether a request for a model that nobody serves has it loaded.
	LoadOnDemand bool
	// LoadTimeout bounds how long a request waits for that; (0, 24 h].
	LoadTimeout time.Duration
	// Stale is how long a worker may say nothing before it counts as lost; [1 s, 1 min].
	Stale time.Duration
	// FailoverWait is how long a stream that lost its worker waits for another one, unless its call has a deadline; [1 ms, 1 h].
	FailoverWait time.Duration
	// InexactFailover is what becomes of a stream for which no worker of its class is left: Continue or Refuse.
	InexactFailover string
	// MaxHeldBytes bounds the requests that are held for their streams; at least one of the largest.
	MaxHeldBytes int64
	// MaxQueue is how many requests wait for places of one model; [0, 1048576].
	MaxQueue int
	// MaxQueueTime is how long a call waits for its first place; 0: as long as its caller does, else [1 ms, 24 h].
	MaxQueueTime time.Duration
	// MaxVectorCalls is how many calls of vectors are under way at once; [1, 1048576].
	MaxVectorCalls int64
	// MaxVectorBytes bounds the messages that these hold; at least a training's.
	MaxVectorBytes int64
	// WorkerGrace is how long a model may be without a worker before its requests are refused; [0, 1 min].
	WorkerGrace time.Duration
	// DrainTimeout bounds the wait for running calls at the end; [0, 1 h].
	DrainTimeout time.Duration
	// SendStall is how long an answer may not move before its call ends; [1 s, 1 h].
	SendStall time.Duration
	// Processors is how many processors are used; 0: as many as the load needs, unless GOMAXPROCS is set; see Follows.
	Processors int
	// CPUProfile is a file for a profile of the whole run; empty: none.
	CPUProfile string
	// MetricsListen is where measures and probes are served; empty: nowhere. PprofListen is the same for profiles.
	MetricsListen, PprofListen string
	// ConsoleListen is where browsers are answered; empty: nowhere.
	ConsoleListen string
	// MetricsTLS is whether measures and probes are served over TLS.
	MetricsTLS bool
	// LoadReports is whether balancers are told of load, as ORCA has it.
	LoadReports bool
	// Telemetry is what the environment says of traces, and of measures that are sent.
	Telemetry telemetry.Settings
	// LogLevel is trace, debug, info, warn or error.
	LogLevel string
	// LogJSON makes log lines JSON objects.
	LogJSON bool
}

// Values of InexactFailover.
const (
	Continue = "continue"
	Refuse   = "refuse"
)

// defaultMaxHeldBytes is five thousand requests of 220 kB.
const defaultMaxHeldBytes = 1 << 30

// Flags registers the flags and returns where they will be.
func Flags(fs *pflag.FlagSet) *Config {
	c := &Config{Telemetry: telemetry.FromEnvironment(os.Getenv)}
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:7070", "address to serve on: host:port or unix:PATH")
	fs.StringSliceVar(&c.Workers, "workers", nil, "workers, separated by commas: host:port, unix:PATH, or dns:///name:port for all addresses of a name")
	c.Transport.Serves(fs)
	c.Transport.Dials(fs)
	c.Auth.Serves(fs)
	c.Auth.Dials(fs, "worker-token-file", "workers")
	fs.Int64Var(&c.MaxInFlight, "max-in-flight", 16384, "requests one worker gets from this process at once; 0 is no bound")
	fs.BoolVar(&c.LoadOnDemand, "load-on-demand", false, "let a request for a model that no worker serves have it loaded, and wait for that")
	fs.DurationVar(&c.LoadTimeout, "load-timeout", 5*time.Minute, "longest wait of a request for its model's load, which goes on; with --load-on-demand")
	fs.DurationVar(&c.Stale, "stale", 1600*time.Millisecond, "how long a worker may say nothing before its streams are given up; up to 1.6 times as long for one whose own steps take longer")
	fs.DurationVar(&c.FailoverWait, "failover-wait", relay.DefaultFailoverWait, "longest wait of a stream for another worker when its own is lost, unless its call has a deadline")
	fs.StringVar(&c.InexactFailover, "inexact-failover", Continue, "when no worker of a stream's class is left: continue on another class and say so, or refuse")
	fs.Int64Var(&c.MaxHeldBytes, "max-held-bytes", defaultMaxHeldBytes, "bytes of requests held until their streams end, to go on elsewhere; requests beyond it are refused")
	fs.IntVar(&c.MaxQueue, "max-queue", admission.DefaultMaxQueue, "requests that wait for places of one model at once; 0: none waits")
	fs.DurationVar(&c.MaxQueueTime, "max-queue-time", admission.DefaultMaxQueueTime, "longest wait of a call in the scheduler for its first place on a worker; then it is refused, unless its deadline comes sooner; 0: no limit")
	fs.Int64Var(&c.MaxVectorCalls, "max-vector-calls", vectors.DefaultMaxCalls, "calls that train, put, encode or decode at once, beside those of models; others are refused")
	fs.Int64Var(&c.MaxVectorBytes, "max-vector-bytes", vectors.DefaultMaxBytes, "bytes of messages that such calls hold; calls beyond it are refused")
	fs.DurationVar(&c.WorkerGrace, "worker-grace", admission.DefaultGrace, "how long a model may be without a worker before its requests are refused, or it is loaded elsewhere")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", 30*time.Second, "longest wait for running calls when stopping")
	fs.DurationVar(&c.SendStall, "send-stall", rpc.DefaultSendStall, "how long a caller may read nothing of an answer that waits for it; then its call ends")
	fs.IntVar(&c.Processors, "processors", 0, "processors to use; 0: as many as the load needs, or $GOMAXPROCS if set")
	fs.StringVar(&c.CPUProfile, "cpu-profile", "", "file for a CPU profile of the whole run (default: none)")
	fs.StringVar(&c.MetricsListen, "metrics-listen", "", "address to serve Prometheus measures and health checks on, such as 127.0.0.1:9070: /metrics, /healthz, /readyz (default: none)")
	fs.BoolVar(&c.MetricsTLS, "metrics-tls", false, "serve measures and health checks over TLS with the certificate of --tls-cert, measures then only to callers that --tls-client-ca and --tls-client-san accept")
	fs.StringVar(&c.PprofListen, "pprof-listen", "", "loopback address or unix:PATH to serve /debug/pprof/ on, such as 127.0.0.1:6060 (default: none)")
	fs.StringVar(&c.ConsoleListen, "console-listen", "", "address to serve a page for operators on, such as 127.0.0.1:8070; beyond this machine it needs --tls-cert, and --auth-keys or --tls-client-ca (default: none)")
	fs.BoolVar(&c.LoadReports, "load-reports", false, "tell balancers in front how much there is to do, by ORCA: in the trailers of generations, and by stream")
	fs.StringVar(&c.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	fs.BoolVar(&c.LogJSON, "log-json", false, "write log lines as JSON objects")
	return c
}

// Validate reports everything that is wrong, each with ErrInvalid.
func (c *Config) Validate() error {
	var wrong []error
	refuse := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil && !strings.HasPrefix(c.Listen, "unix:") {
		refuse("--listen %q: want host:port or unix:PATH", c.Listen)
	} else if err := c.Transport.CheckListen(c.Listen); err != nil {
		refuse("%w", err)
	}
	if err := c.Transport.Check(); err != nil {
		refuse("%w", err)
	}
	if err := c.Auth.Check(); err != nil {
		refuse("%w", err)
	}
	if err := (monitor.Addresses{Listen: c.Listen, Metrics: c.MetricsListen, Profiles: c.PprofListen, Console: c.ConsoleListen}).Validate(); err != nil {
		refuse("%w", err)
	}
	c.checkConsole(refuse)
	if err := monitor.CheckSecure(c.MetricsTLS, c.MetricsListen, c.Transport.Cert); err != nil {
		refuse("%w", err)
	}
	if err := c.Telemetry.Check(); err != nil {
		refuse("%w", err)
	}
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
	if err := rpc.CheckSendStall(c.SendStall); err != nil {
		refuse("%w", err)
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		refuse("--log-level is %q: must be trace, debug, info, warn or error", c.LogLevel)
	}
	return errors.Join(wrong...)
}

// checkConsole refuses a console that strangers reach. --insecure makes no exception: it allows others to read prompts, where this
// would let them act in the name of whose token they read.
func (c *Config) checkConsole(refuse func(format string, args ...any)) {
	const elsewhere = "or listen on 127.0.0.1 and reach it with ssh -L"
	switch {
	case c.ConsoleListen == "" || transport.StaysHere(c.ConsoleListen):
	case c.Transport.Cert == "":
		refuse("--console-listen %q: would show other machines tokens and prompts in plaintext: give --tls-cert and --tls-key, "+elsewhere, c.ConsoleListen)
	case c.Auth.Keys == "" && c.Transport.ClientCA == "":
		refuse("--console-listen %q: would let anybody who reaches it unload models: give --auth-keys or --tls-client-ca, "+elsewhere, c.ConsoleListen)
	}
}

// Follows reports whether the number of processors follows the load. The environment is asked here: the runtime has obeyed
// GOMAXPROCS before any flag was read, and who sets it wants a number that stays.
func (c *Config) Follows() bool { return c.Processors == 0 && os.Getenv("GOMAXPROCS") == "" }

// KeepsHeap reports whether the heap's room follows what is alive in it, which it does unless GOGC or GOMEMLIMIT says
// otherwise.
func (c *Config) KeepsHeap() bool { return os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" }

// Fields are the configuration as log fields.
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
