package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/filecache"
	"github.com/millrace/millrace/gpuworker/model"
	"github.com/millrace/millrace/gpuworker/vectors"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/gpuworker/internal/server"
	"github.com/millrace/millrace/services/internal/longids"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/textlimit"
	"github.com/millrace/millrace/services/internal/version"
)

// Run serves until ctx ends: then readiness flips, running requests have the drain timeout to end, and the device's
// memory is given back. It returns nil after such an end, ErrHangs when the device keeps it, and engine.ErrDevice when a GPU
// was lost, while requests still ran after the end of ctx too.
func Run(ctx context.Context, c *config.Config, logger hclog.Logger) error {
	device, err := c.Device.Open(logger)
	if err != nil {
		return fmt.Errorf("open device: %w", err)
	}
	warnNeighbours(c, device, os.DirFS("/proc"), os.Getpid(), logger)
	return serve(ctx, c, device, logger)
}

// serve is Run on a device, which it closes.
func serve(ctx context.Context, c *config.Config, device engine.Device, logger hclog.Logger) (err error) {
	verify := c.VerifyInterval
	if verify == 0 {
		verify = -1
	}
	sent, err := telemetry.Open(ctx, c.Telemetry, telemetry.Identity{
		Program: "millrace-worker", Version: version.String(), Instance: c.WorkerID,
	}, logger)
	if err != nil {
		return errors.Join(err, device.Close())
	}
	defer sent.End()
	measured := newMeasures(c)
	models := model.NewManager(model.Config{
		Dir: c.Models, MaxSequences: c.MaxSequences, MaxBatchedTokens: c.MaxBatched, VerifyInterval: verify,
		StepTarget: c.StepTarget, MaxQueueTime: c.MaxQueueTime, SwapSpace: c.Swap(), IdleUnload: c.IdleUnload, EvictIdle: c.EvictIdle,
		SamplingDefaults: c.Defaults == config.ModelFile,
		Observe:          measured.observe(),
	}, device, logger)
	books := vectors.NewManager(vectors.Config{
		Dir: c.Vectors.Codebooks, MaxTrainings: c.Vectors.MaxTrainings, SpoolSpace: c.Vectors.Spool(onGPU(device)), PutSpace: c.Vectors.Put(), Share: c.Vectors.Share,
		VerifyInterval: c.VerifyInterval, Tokens: server.TokensOf(models),
	}, device, logger)
	defer func() {
		closeErr := within(closeTimeout, func() error { return errors.Join(books.Close(), models.Close(), device.Close()) })
		if err == nil {
			err = closeErr
		}
	}()
	lis, err := rpc.Listen(ctx, c.Listen)
	if err != nil {
		return err
	}
	if err := measured.listen(ctx, logger); err != nil {
		return errors.Join(err, lis.Close())
	}
	s := server.New(models, server.Vectors{Manager: books, Patience: c.Vectors.Patience}, server.Identity{
		WorkerID: c.WorkerID, Incarnation: incarnation(), Version: version.String(),
	}, logger)
	s.Measure(sent.Generations)
	if c.LoadReports {
		s.ReportLoad()
	}
	if c.LogPrompts {
		s.ShowPrompts()
	}
	serving := rpc.ServerConfig{
		Domain: rpc.WorkerDomain, DrainTimeout: c.DrainTimeout, Options: s.Options(),
		MaxReceiveBytes: rpc.DefaultMaxReceiveBytes + rpc.ResumeBytes, Observer: measured.observer(), Tracer: sent.Tracer(),
		Unmarshal: longids.Unmarshal, MaxMethodBytes: textlimit.Methods(), SendStall: c.SendStall,
	}
	if err := c.Transport.Serve(&serving, logger); err != nil {
		return errors.Join(err, measured.close(), lis.Close())
	}
	guard, err := c.Auth.Serve(&serving, logger)
	if err != nil {
		return errors.Join(err, measured.close(), lis.Close())
	}
	measured.with(guard)
	r := rpc.NewServer(serving, logger)
	measured.of(s, r)
	if err := s.Register(r); err != nil {
		return errors.Join(err, measured.close(), lis.Close())
	}

	ctx, cancel := context.WithCancel(ctx)
	// Whoever watches goes on until no request runs any more.
	watching, served := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	defer work.Wait()
	defer served()
	defer cancel()
	defer context.AfterFunc(ctx, s.Stop)()
	var loadErr, gpuErr error
	work.Go(func() { s.Run(watching, r) })
	work.Go(func() { measured.profile(watching, logger) })
	work.Go(func() { measured.serve(watching, models, books, s, logger) })
	if onGPU(device) {
		work.Go(func() {
			failure := func() error {
				_, err := device.Info()
				return err
			}
			if gpuErr = watchGPU(watching, failure, models.Loaded); gpuErr != nil {
				cancel()
			}
		})
	}
	work.Go(func() {
		if advice := model.Advice(models.Files()); advice != "" {
			logger.Warn("the models folder has no model that can be loaded", "folder", c.Models, "reason", advice)
		}
	})
	work.Go(func() {
		if loadErr = loadAll(ctx, c.Load, models, logger); loadErr != nil {
			cancel()
			return
		}
		s.Started()
	})
	logger.Info("worker serves", "address", lis.Addr().String(), "worker_id", c.WorkerID, "version", version.String())
	err = r.Serve(ctx, lis)
	cancel()
	served()
	work.Wait()
	return errors.Join(loadErr, gpuErr, err)
}

func onGPU(device engine.Device) bool {
	info, err := device.Info()
	return err == nil && info.Kind == "cuda"
}

// ErrNoModel is the error of a model of --load that has no file in the models folder. Starting the worker again does not help.
var ErrNoModel = errors.New("there is no such model to load at the start")

// loadAll loads the models wanted from the start, one after another, and pins them. A load that UnloadModel ends is left out.
func loadAll(ctx context.Context, names []string, models *model.Manager, logger hclog.Logger) error {
	pin := true
	for _, name := range names {
		_, _, err := models.Load(ctx, name, model.Options{Pin: &pin}, nil)
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, model.ErrLoadEnded):
			logger.Warn("model not loaded at the start", "model", name, "error", err)
		case errors.Is(err, model.ErrName), errors.Is(err, model.ErrNotFound) && !filecache.OfSystem(err):
			return fmt.Errorf("--load %s: %w: %w", name, ErrNoModel, err)
		default:
			return fmt.Errorf("load %q at start: %w", name, err)
		}
	}
	return nil
}

// incarnation is another one at each start.
func incarnation() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x-%s", time.Now().Unix(), hex.EncodeToString(b[:]))
}
