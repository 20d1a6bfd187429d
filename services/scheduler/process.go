package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/scheduler/internal/config"
	"github.com/millrace/millrace/services/scheduler/internal/heap"
	"github.com/millrace/millrace/services/scheduler/internal/processors"
)

// followLoad lets the processors and the memory that the Go runtime uses follow the load, until the
// last call has ended: draining calls need both.
func followLoad(a *app.App, cfg *config.Config, logger hclog.Logger) {
	if cfg.Processors > 0 {
		runtime.GOMAXPROCS(cfg.Processors)
	}
	if cfg.FollowsLoad() {
		a.Go(func(ctx context.Context) error {
			processors.Follow(ctx, logger)
			return nil
		})
	}
	if cfg.TunesHeap() {
		a.Go(func(ctx context.Context) error {
			defer heap.Bound()()
			heap.Follow(ctx)
			return nil
		})
	}
}

// startProfile writes a CPU profile to a file until stop is called. Without a path it does nothing.
func startProfile(path string) (stop func() error, err error) {
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
