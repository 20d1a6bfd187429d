package app

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/transport"
)

// Flags are the settings that the servers have.
type Flags struct {
	// Listen is host:port or unix:PATH.
	Listen string
	// Transport is TLS with callers, and in the scheduler with workers.
	Transport transport.Flags
	// Auth has the keys of callers, and in the scheduler the token for its calls to workers.
	Auth auth.Flags
	// DrainTimeout bounds the wait for running calls at shutdown.
	DrainTimeout time.Duration
	// SendStall is how long a response may not move before its call ends; [1 s, 1 h].
	SendStall time.Duration
	// MetricsListen is where metrics and probes are served, PprofListen is where profiles are.
	// Empty: nowhere.
	MetricsListen, PprofListen string
	// MetricsTLS serves metrics and probes over TLS.
	MetricsTLS bool
	// LoadReports sends ORCA load reports to balancers.
	LoadReports bool
	// Telemetry has the settings of traces and sent metrics, from the environment.
	Telemetry telemetry.Settings
	// LogLevel is trace, debug, info, warn or error.
	LogLevel string
	// LogJSON writes log lines as JSON objects.
	LogJSON bool
}

// Defaults are what differs between the flags of the programs.
type Defaults struct {
	Listen         string
	MetricsExample string // in the help of --metrics-listen
	LoadReports    bool
	// HTTP is true for a program that serves HTTP and not gRPC: it has no keys and no load reports.
	HTTP bool
}

// Register puts the flags on fs. Telemetry has no flag: its settings come from the environment.
func (f *Flags) Register(fs *pflag.FlagSet, d Defaults) {
	fs.StringVar(&f.Listen, "listen", d.Listen, "address to serve on: host:port or unix:PATH")
	f.Transport.AddServerFlags(fs)
	if !d.HTTP {
		f.Auth.AddServerFlags(fs)
		fs.BoolVar(&f.LoadReports, "load-reports", d.LoadReports, "report load to balancers by ORCA: in the trailers of generations, and by stream")
	}
	fs.DurationVar(&f.DrainTimeout, "drain-timeout", 30*time.Second, "longest wait for running calls at shutdown; then they are cut off")
	fs.DurationVar(&f.SendStall, "send-stall", rpc.DefaultSendStall, "how long a caller may read nothing while a response waits for it; then its call ends")
	fs.StringVar(&f.MetricsListen, "metrics-listen", "", "address to serve Prometheus metrics and health checks on, such as "+d.MetricsExample+": /metrics, /healthz, /readyz (default: none)")
	fs.BoolVar(&f.MetricsTLS, "metrics-tls", false, "serve metrics and health checks over TLS with the certificate of --tls-cert; metrics then only to callers that --tls-client-ca and --tls-client-san accept")
	fs.StringVar(&f.PprofListen, "pprof-listen", "", "loopback address or unix:PATH to serve /debug/pprof/ on, such as 127.0.0.1:6060 (default: none)")
	fs.StringVar(&f.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	fs.BoolVar(&f.LogJSON, "log-json", false, "write log lines as JSON objects")
}

// Check returns everything that is wrong with the settings, each error naming its flag. console is
// the value of --console-listen, which the scheduler alone has.
func (f *Flags) Check(console string) error {
	errs := []error{
		f.checkListen(), f.Transport.Check(), f.Auth.Check(),
		monitor.Addresses{Listen: f.Listen, Metrics: f.MetricsListen, Profiles: f.PprofListen, Console: console}.Validate(),
		monitor.CheckSecure(f.MetricsTLS, f.MetricsListen, f.Transport.Cert),
		f.Telemetry.Check(), rpc.CheckSendStall(f.SendStall),
	}
	if hclog.LevelFromString(f.LogLevel) == hclog.NoLevel {
		errs = append(errs, fmt.Errorf("--log-level is %q: must be trace, debug, info, warn or error", f.LogLevel))
	}
	return errors.Join(errs...)
}

func (f *Flags) checkListen() error {
	if _, _, err := net.SplitHostPort(f.Listen); err != nil && !strings.HasPrefix(f.Listen, "unix:") {
		return fmt.Errorf("--listen %q: want host:port or unix:PATH", f.Listen)
	}
	return f.Transport.CheckListen(f.Listen)
}

// Logger returns the program's logger, which grpc-go logs to as well. Call it once, before anything
// of grpc-go runs.
func (f *Flags) Logger(program string, out io.Writer) hclog.Logger {
	logger := hclog.New(&hclog.LoggerOptions{
		Name: program, Output: out, Level: hclog.LevelFromString(f.LogLevel), JSONFormat: f.LogJSON,
	})
	rpc.LogGRPC(logger)
	return logger
}
