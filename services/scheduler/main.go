package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/textlimit"
	"github.com/millrace/millrace/services/internal/transport"
	"github.com/millrace/millrace/services/internal/version"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/heap"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/metrics"
	"github.com/millrace/millrace/services/scheduler/internal/processors"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/residency"
	"github.com/millrace/millrace/services/scheduler/internal/server"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

const program = "millrace-scheduler"

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2 // a wrong argument, flag or value
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := command(os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	}
	os.Exit(exitCode(err))
}

// exitCode is what the program exits with.
func exitCode(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, config.ErrInvalid):
		return exitUsage
	}
	return exitFailed
}

// misused makes the errors that cobra has with a command line errors of the configuration.
func misused(_ *cobra.Command, err error) error {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return fmt.Errorf("%w: %w: see --help", config.ErrInvalid, err)
}

// noArgs refuses arguments that are no flags.
func noArgs(cmd *cobra.Command, args []string) error { return misused(cmd, cobra.NoArgs(cmd, args)) }

// command is the command line; the log goes to logs.
func command(logs io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           program + " --workers a,b",
		Short:         "Routes requests to workers and relays their token streams",
		Args:          noArgs,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cfg := config.Flags(root.Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), cfg, logs) }
	root.AddCommand(health())
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(misused)
	root.CompletionOptions.DisableDefaultCmd = true
	return root
}

// health asks a server how it is: the health check of a container without other programs.
func health() *cobra.Command {
	cmd := &cobra.Command{
		Use: "health", Short: "Exits 0 if a server says that it serves", Args: noArgs,
	}
	target := cmd.Flags().String("target", "127.0.0.1:7070", "address of the server")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "longest wait for the answer")
	var flags transport.Flags
	flags.Dials(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		if err := flags.CheckClient("--target", *target); err != nil {
			return fmt.Errorf("%w: %w", config.ErrInvalid, err)
		}
		creds, err := flags.Dialer(hclog.NewNullLogger())
		if err != nil {
			return err
		}
		return rpc.CheckHealth(ctx, *target, program, grpc.WithTransportCredentials(creds))
	}
	return cmd
}

// serve runs the scheduler until ctx ends.
func serve(ctx context.Context, cfg *config.Config, logs io.Writer) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	profiled, err := profile(cfg.CPUProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, profiled()) }()
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "millrace-scheduler", Output: logs, Level: hclog.LevelFromString(cfg.LogLevel), JSONFormat: cfg.LogJSON,
	})
	rpc.LogGRPC(logger)
	logger.Info("starting", append([]any{"version", version.String()}, cfg.Fields()...)...)

	defer process(ctx, cfg, logger)()
	creds, err := cfg.Transport.Dialer(logger)
	if err != nil {
		return err
	}
	token, err := cfg.Auth.Dialer(logger)
	if err != nil {
		return err
	}
	workers, err := fleet.New(fleet.Config{
		Workers: cfg.Workers, Stale: cfg.Stale,
		Dial: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, program, grpc.WithTransportCredentials(creds), token(address))
		},
	}, logger)
	if err != nil {
		return err
	}
	sent, err := telemetry.Open(ctx, cfg.Telemetry, telemetry.Identity{Program: program, Version: version.String()}, logger)
	if err != nil {
		return err
	}
	defer sent.End()
	measured, err := openMeasures(ctx, cfg, logger)
	if err != nil {
		return err
	}
	loader := loading.New(workers, loading.Config{}, logger)
	queues := admission.New(workers, cfg.MaxInFlight, admission.MaxQueue(cfg.MaxQueue), admission.MaxQueueTime(cfg.MaxQueueTime),
		admission.Grace(cfg.WorkerGrace), admission.OnDemand(cfg.LoadOnDemand))
	var places relay.Placer = queues
	onDemand := residency.New(places, residency.By(loader), residency.Config{Timeout: cfg.LoadTimeout, MaxWaiting: max(cfg.MaxQueue, 1)}, logger)
	if cfg.LoadOnDemand {
		places = onDemand
	}
	var reports *loadreport.Reporter
	if cfg.LoadReports {
		reports = loadreport.New(func() loadreport.Load { return server.LoadOf(workers.Snapshot(), queues.Stats()) })
	}
	handlers := server.New(workers, relay.New(places, relay.Options{
		FailoverWait: cfg.FailoverWait, RefuseInexact: cfg.InexactFailover == config.Refuse, Observer: measured.ofGenerations(),
		Generations: sent.Generations, Reports: reports,
	}), loader)
	serving := rpc.ServerConfig{
		Domain: fault.Domain, DrainTimeout: cfg.DrainTimeout, MaxWaitingBytes: cfg.MaxHeldBytes, SendStall: cfg.SendStall,
		Observer: measured.ofCalls(), Tracer: sent.Tracer(), Options: reports.Options(),
		MaxMethodBytes: textlimit.Methods(),
	}
	if err := cfg.Transport.Serve(&serving, logger); err != nil {
		return err
	}
	guard, err := cfg.Auth.Serve(&serving, logger)
	if err != nil {
		return err
	}
	measured.with(guard)
	s := rpc.NewServer(serving, logger)
	handlers.Register(s)
	if err := reports.Register(s); err != nil {
		return errors.Join(err, measured.close())
	}
	carrier := vectors.New(workers, vectorConfig(cfg), logger)
	server.RegisterVectors(s, carrier)
	s.SetReady(false) // until the fleet is known
	browsers, err := openConsole(ctx, cfg, s, logger)
	if err != nil {
		return errors.Join(err, measured.close())
	}
	lis, err := rpc.Listen(ctx, cfg.Listen)
	if err != nil {
		return errors.Join(err, measured.close(), browsers.close())
	}
	logger.Info("listening", "address", lis.Addr().String())

	// The fleet is followed until the last call has ended, not until the signal: draining calls need their workers.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	followed := make(chan error, 1)
	go func() { followed <- workers.Run(following) }()
	measured.serve(following, metrics.Source{
		Snapshot: workers.Snapshot, Events: workers.Events, Queues: queues.Stats, Loads: loader.Loads, Vectors: carrier.UnderWay,
		Stopping: func() bool { return ctx.Err() != nil }, Version: version.String(),
	}, s, logger)
	browsers.serve(following, logger)
	go func() {
		if known(following, workers) {
			s.SetReady(true)
		}
	}()
	err = s.Serve(ctx, lis)
	loader.Close()
	onDemand.Close()
	carrier.Close()
	stop()
	measured.wait()
	browsers.wait()
	return errors.Join(err, <-followed)
}

// vectorConfig is the part of the configuration that is of vectors.
func vectorConfig(cfg *config.Config) vectors.Config {
	c := vectors.Config{MaxCalls: cfg.MaxVectorCalls, MaxBytes: cfg.MaxVectorBytes, FailoverWait: cfg.FailoverWait, Grace: cfg.WorkerGrace}
	if cfg.LoadOnDemand {
		c.OnDemand = cfg.LoadTimeout
	}
	return c
}

// process sets what the runtime uses of the machine, until undo is called.
func process(ctx context.Context, cfg *config.Config, logger hclog.Logger) (undo func()) {
	if cfg.Processors > 0 {
		runtime.GOMAXPROCS(cfg.Processors)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // draining calls need processors and memory too
	var following sync.WaitGroup
	if cfg.Follows() {
		following.Go(func() { processors.Follow(ctx, logger) })
	}
	unbound := func() {}
	if cfg.KeepsHeap() {
		unbound = heap.Bound()
		following.Go(func() { heap.Follow(ctx) })
	}
	return func() {
		cancel()
		following.Wait()
		unbound()
	}
}

// profile writes a CPU profile to a file until stop is called; no path, no profile.
func profile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("--cpu-profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(fmt.Errorf("--cpu-profile: %w", err), file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}

// known waits for the fleet to be known; false if ctx ended first.
func known(ctx context.Context, workers *fleet.Fleet) bool {
	for {
		snapshot := workers.Snapshot()
		if snapshot.Route.Known {
			return true
		}
		select {
		case <-snapshot.Next:
		case <-ctx.Done():
			return false
		}
	}
}
