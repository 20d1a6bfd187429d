package app

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/textlimit"
	"github.com/millrace/millrace/services/internal/version"
)

// App is one running program. Make it with Open, and Close it.
type App struct {
	// Telemetry exports spans and logs to a collector. It is never nil.
	Telemetry *telemetry.Telemetry

	flags  *Flags
	logger hclog.Logger
	calls  *monitor.Calls // nil if metrics are not served

	service, metrics, profiles net.Listener   // the last two may be nil
	secure                     monitor.Secure // of metrics; nil: plaintext

	stopping context.Context // see Context
	stop     context.CancelFunc
	tasks    context.Context // see Go
	end      context.CancelFunc
	running  sync.WaitGroup
	mu       struct {
		sync.Mutex
		failed []error // of tasks
	}
}

// Open opens telemetry and the ports, so that a port in use ends the program before it serves. The
// program stops when ctx ends. instance names one of several workers in telemetry, and may be
// empty.
func Open(ctx context.Context, program, instance string, flags *Flags, logger hclog.Logger) (*App, error) {
	a := &App{flags: flags, logger: logger}
	a.stopping, a.stop = context.WithCancel(ctx)
	a.tasks, a.end = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	a.Telemetry, err = telemetry.Open(ctx, flags.Telemetry, telemetry.Identity{
		Program: program, Version: version.String(), Instance: instance,
	}, logger)
	if err != nil {
		a.stop()
		a.end()
		return nil, err
	}
	if err := a.listen(ctx); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *App) listen(ctx context.Context) (err error) {
	if a.flags.MetricsTLS {
		if a.secure, err = a.flags.Transport.Web(a.logger.Named("metrics")); err != nil {
			return err
		}
	}
	if a.flags.MetricsListen != "" {
		a.calls = monitor.NewCalls()
		if a.metrics, err = rpc.Listen(ctx, a.flags.MetricsListen); err != nil {
			return err
		}
	}
	if a.flags.PprofListen != "" {
		if a.profiles, err = rpc.Listen(ctx, a.flags.PprofListen); err != nil {
			return err
		}
	}
	a.service, err = rpc.Listen(ctx, a.flags.Listen)
	return err
}

// Address is where the program serves.
func (a *App) Address() string { return a.service.Addr().String() }

// Context ends when the shutdown begins: at the signal, or when a task has failed.
func (a *App) Context() context.Context { return a.stopping }

// Go runs a task in the background. Its context ends when the last call has ended, and not at the
// signal. If the task returns an error, the program stops as at a signal, and Serve returns the
// error.
func (a *App) Go(task func(ctx context.Context) error) {
	a.running.Go(func() {
		if err := task(a.tasks); err != nil {
			a.mu.Lock()
			a.mu.failed = append(a.mu.failed, err)
			a.mu.Unlock()
			a.stop()
		}
	})
}

// NewServer makes the gRPC server of the program: cfg, completed by TLS, keys, limits, tracing and
// metrics.
func (a *App) NewServer(cfg rpc.ServerConfig) (*rpc.Server, error) {
	cfg.DrainTimeout, cfg.SendStall = a.flags.DrainTimeout, a.flags.SendStall
	cfg.MaxMethodBytes, cfg.Tracer = textlimit.Methods(), a.Telemetry.Tracer()
	if a.calls != nil {
		cfg.Observer = a.calls
	}
	if err := a.flags.Transport.Serve(&cfg, a.logger); err != nil {
		return nil, err
	}
	guard, err := a.flags.Auth.Serve(&cfg, a.logger)
	if err != nil {
		return nil, err
	}
	s := rpc.NewServer(cfg, a.logger)
	if a.calls != nil {
		a.calls.Of(s)
		if guard != nil {
			a.calls.With(guard)
		}
	}
	return s, nil
}

// ServeMetrics serves the page of metrics and probes, if there is a port for it. Call it after
// NewServer. Calls continue if the page cannot be served.
func (a *App) ServeMetrics(page func(calls *monitor.Calls) (monitor.Page, error)) {
	if a.metrics == nil {
		return
	}
	a.logger.Info("metrics served", "address", a.metrics.Addr().String())
	a.Go(func(ctx context.Context) error {
		p, err := page(a.calls)
		if err != nil {
			err = errors.Join(err, a.metrics.Close())
		} else {
			p.Secure = a.secure
			err = p.Serve(ctx, a.metrics, a.logger.Named("metrics"))
		}
		if err != nil {
			a.logger.Error("metrics are no longer served", "error", err)
		}
		return nil
	})
}

// serveProfiles serves profiles, if there is a port for them.
func (a *App) serveProfiles() {
	if a.profiles == nil {
		return
	}
	a.logger.Info("profiles served", "address", a.profiles.Addr().String())
	a.Go(func(ctx context.Context) error {
		if err := monitor.Profiles(ctx, a.profiles, a.logger.Named("pprof")); err != nil {
			a.logger.Error("profiles are no longer served", "error", err)
		}
		return nil
	})
}

// Server serves on a listener until ctx ends, and returns when the running calls have ended or were
// cut off. It closes lis. *rpc.Server is one.
type Server interface {
	Serve(ctx context.Context, lis net.Listener) error
}

// Serve serves until Context ends and the running calls have ended or were cut off. It then runs
// the closers in order, ends the tasks and waits for them. It returns the errors of tasks and of
// the server.
func (a *App) Serve(s Server, closers ...func()) error {
	a.serveProfiles()
	err := s.Serve(a.stopping, a.service)
	a.stop()
	for _, end := range closers {
		end()
	}
	return errors.Join(a.wait(), err)
}

// wait ends the tasks and waits for them. It returns their errors.
func (a *App) wait() error {
	a.end()
	a.running.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.mu.failed...)
}

// Close ends what Serve has not: tasks and listeners of a program that failed to start. It then
// sends the last telemetry.
func (a *App) Close() {
	a.stop()
	_ = a.wait() // Serve returns errors of tasks; before Serve, another error is why the program ends
	for _, lis := range []net.Listener{a.service, a.metrics, a.profiles} {
		if lis != nil {
			_ = lis.Close() // only an error if it was served, and so is closed
		}
	}
	a.Telemetry.End()
}
