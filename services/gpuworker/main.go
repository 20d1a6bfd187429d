package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/template"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/gpuworker/internal/metrics"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/gpuworker/internal/vectorserver"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/monitor"
	"github.com/millrace/millrace/services/internal/packedids"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/version"
)

const program = "millrace-worker"

func main() {
	template.MaybeChild()
	os.Exit(app.Main(command(os.Stderr)))
}

// command is the command line. The log goes to logs.
func command(logs io.Writer) *cobra.Command {
	cfg := &config.Config{}
	root := app.Root(&cobra.Command{
		Use: program + " --models DIR", Short: "Serves the models of one folder from one device",
		Long: `Exit codes: 0 stopped as asked; 1 failed, as when its GPU is lost; 2 a wrong flag, a device that this machine does not
have, or a model of --load that has no file. The first SIGINT or SIGTERM lets running requests end, the second ends the program at once.`,
		Example: `  millrace-worker --models models --device cpu --load stories
  millrace-worker --models /srv/models --device cuda:0 --listen 0.0.0.0:7071 --tls-cert worker.pem --tls-key worker-key.pem --tls-client-ca ca.pem
  millrace-worker --self-test`,
	})
	cfg.Register(root.Flags())
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cfg.Validate(); err != nil {
			return err
		}
		logger := cfg.Logger(program, logs)
		logger.Debug("configuration", "config", fmt.Sprintf("%+v", *cfg))
		device, err := openDevice(cfg, logger)
		if err != nil {
			return err
		}
		if cfg.SelfTest {
			return selfTest(device, cmd.OutOrStdout())
		}
		if err := hostCacheFits(cfg, device); err != nil {
			return errors.Join(err, device.Close())
		}
		warnNeighbours(cfg, device, os.DirFS("/proc"), os.Getpid(), logger)
		return serve(cmd.Context(), cfg, device, logger)
	}
	return root
}

// serve runs the worker on a device until ctx ends and the calls that ran then have ended. It
// closes the device. It returns errHangs if the device does not give its memory back, and
// engine.ErrDevice if a GPU was lost, also while calls still ran after the end of ctx.
func serve(ctx context.Context, cfg *config.Config, device engine.Device, logger hclog.Logger) (err error) {
	a, err := app.Open(ctx, program, cfg.WorkerID, &cfg.Flags, logger)
	if err != nil {
		return errors.Join(err, device.Close())
	}
	defer a.Close()
	var m *metrics.Metrics
	if cfg.MetricsListen != "" {
		m = metrics.New()
	}

	// The models and codebooks of the device.
	models := model.NewManager(cfg.ModelConfig(m.LoopObservers()), device, logger)
	books := vectors.NewManager(cfg.Vectors.Config(isGPU(device), cfg.VerifyInterval, vectorserver.TokensOf(models)), device, logger)
	defer func() {
		closeErr := within(closeTimeout, func() error { return errors.Join(books.Close(), models.Close(), device.Close()) })
		if err == nil {
			err = closeErr
		}
	}()

	// The server and its services. It is not ready until Run finds that the worker is.
	s := server.New(models, server.Config{
		WorkerID: cfg.WorkerID, Incarnation: newIncarnation(), Version: version.String(),
		LoadReports: cfg.LoadReports, LogPrompts: cfg.LogPrompts, Observer: m.ServerObserver(), Generations: a.Telemetry.Generations,
		Extension: func(s *server.Server) server.Extension {
			return vectorserver.New(s, vectorserver.Config{Manager: books, WorkerID: cfg.WorkerID, Patience: cfg.Vectors.Patience})
		},
	}, logger)
	r, err := a.NewServer(rpc.ServerConfig{
		Domain: rpc.WorkerDomain, Options: s.Options(), Unmarshal: packedids.Unmarshal,
		MaxReceiveBytes: rpc.DefaultMaxReceiveBytes + rpc.ResumeBytes,
	})
	if err != nil {
		return err
	}
	if err := s.Register(r); err != nil {
		return err
	}
	defer context.AfterFunc(a.Context(), s.Stop)()

	a.Go(func(ctx context.Context) error {
		s.Run(ctx, r)
		return nil
	})
	a.ServeMetrics(func(calls *monitor.Calls) (monitor.Page, error) {
		return m.Page(metrics.Source{
			Models: models.Loaded, Vectors: books.Stats, Assessment: s.Assessment, WorkerID: cfg.WorkerID, Version: version.String(), Calls: calls,
			VLLM: cfg.MetricsAliases == config.VLLM,
			Counts: func() metrics.Counts {
				c := metrics.Counts{Unloaded: models.Unloads(), Subscribers: s.Subscribers(), Resyncs: s.Resyncs()}
				c.Loaded, c.Failed = models.Loads()
				return c
			},
		})
	})
	if isGPU(device) {
		a.Go(func(ctx context.Context) error { return watchGPU(ctx, reading(device), models.Loaded) })
	}
	a.Go(func(context.Context) error {
		warnNoModels(cfg.Models, models, logger)
		return nil
	})
	a.Go(func(context.Context) error {
		if err := preload(a.Context(), cfg.Load, models, logger); err != nil {
			return err
		}
		s.Started()
		return nil
	})
	logger.Info("worker serves", "address", a.Address(), "worker_id", cfg.WorkerID, "version", version.String())
	return a.Serve(r)
}
