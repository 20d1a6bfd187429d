package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/metrics"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/residency"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
	"github.com/millrace/millrace/services/scheduler/internal/server"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
)

const program = "millrace-scheduler"

func main() { os.Exit(app.Main(command(os.Stderr))) }

// command is the command line. The log goes to logs.
func command(logs io.Writer) *cobra.Command {
	cfg := &config.Config{}
	root := app.Root(&cobra.Command{
		Use: program + " --workers a,b", Short: "Routes requests to workers and relays their token streams",
	})
	cfg.Register(root.Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		stop, err := startProfile(cfg.CPUProfile)
		if err != nil {
			return err
		}
		return errors.Join(serve(cmd.Context(), cfg, cfg.Logger(program, logs)), stop())
	}
	root.AddCommand(app.HealthCommand(program, "127.0.0.1:7070"))
	return root
}

// serve runs the scheduler until ctx ends and the calls that ran then have ended.
func serve(ctx context.Context, cfg *config.Config, logger hclog.Logger) error {
	logger.Info("starting", append([]any{"version", version.String()}, cfg.Fields()...)...)
	a, err := app.Open(ctx, program, "", &cfg.Flags, logger)
	if err != nil {
		return err
	}
	defer a.Close()
	followLoad(a, cfg, logger)

	// The fleet, and the queues for its slots and for models that are being loaded.
	workers, err := newFleet(cfg, logger)
	if err != nil {
		return err
	}
	loader := loading.New(workers, loading.Config{}, logger)
	queues := admission.New(workers, cfg.MaxInFlight, admission.MaxQueue(cfg.MaxQueue), admission.MaxQueueTime(cfg.MaxQueueTime),
		admission.Grace(cfg.WorkerGrace), admission.OnDemand(cfg.LoadOnDemand))
	onDemand := residency.New(queues, residency.By(loader),
		residency.Config{Timeout: cfg.LoadTimeout, MaxWaiting: max(cfg.MaxQueue, 1)}, logger)
	var placer relay.Placer = queues
	if cfg.LoadOnDemand {
		placer = onDemand
	}
	carrier := vectors.New(workers, cfg.Vectors(), logger)
	defer carrier.Close()

	// The observers of calls: metrics, and load reports for balancers.
	var m *metrics.Metrics
	if cfg.MetricsListen != "" {
		m = metrics.New()
	}
	var reports *loadreport.Reporter
	if cfg.LoadReports {
		reports = loadreport.New(func() loadreport.Load { return server.LoadOf(workers.Snapshot(), queues.Stats()) })
	}

	// The server and its services. It is not ready until the fleet is known.
	s, err := a.NewServer(rpc.ServerConfig{
		Domain: rpcstatus.Domain, MaxWaitingBytes: cfg.MaxHeldBytes, Options: reports.Options(),
	})
	if err != nil {
		return err
	}
	server.New(workers, relay.New(placer, relay.Options{
		FailoverWait: cfg.FailoverWait, RefuseInexact: cfg.InexactFailover == config.Refuse, Observer: m.Observer(),
		Generations: a.Telemetry.Generations, Reports: reports,
	}), loader, carrier.UnderWayOn).Register(s)
	carrier.Register(s)
	if err := reports.Register(s); err != nil {
		return err
	}
	s.SetReady(false)
	if err := serveConsole(a, cfg, s, logger); err != nil {
		return err
	}

	logger.Info("listening", "address", a.Address())
	a.Go(workers.Run)
	a.Go(func(ctx context.Context) error {
		awaitFleet(ctx, workers, func() { s.SetReady(true) })
		return nil
	})
	a.ServeMetrics(func(calls *monitor.Calls) (monitor.Page, error) {
		return m.Page(metrics.Source{
			Snapshot: workers.Snapshot, Events: workers.Events, Queues: queues.Stats, Loads: loader.Loads, Vectors: carrier.UnderWay,
			Stopping: func() bool { return a.Context().Err() != nil }, Version: version.String(), Calls: calls,
		})
	})
	return a.Serve(s, loader.Close, onDemand.Close)
}
