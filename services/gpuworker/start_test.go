package main

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/modeltest"
	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// lines collects log lines. It is safe for concurrent use.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestWorkerWithoutModelsWarnsAtStart(t *testing.T) {
	rpctest.NoLeaks(t)
	for models, warns := range map[string]bool{t.TempDir(): true, repotest.Path("models"): false} {
		var log lines
		device, err := sim.Open(sim.Options{}, rpctest.Logger(t))
		require.NoError(t, err)
		c := &config.Config{
			Flags:    app.Flags{Listen: "unix:" + filepath.Join(t.TempDir(), "worker"), DrainTimeout: time.Second},
			WorkerID: "w", Models: models,
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, c, device, hclog.New(&hclog.LoggerOptions{Output: &log})) }()
		require.Eventually(t, func() bool {
			return strings.Contains(log.String(), "worker serves") && (!warns || strings.Contains(log.String(), "it holds no file NAME.gguf"))
		}, time.Minute, time.Millisecond)
		end()
		require.NoError(t, <-ended)
		require.Equal(t, warns, strings.Contains(log.String(), "has no model that can be loaded"), log.String())
	}
}

func TestTheDefaultsFlagReachesLoads(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	modeltest.WithMetadata(t, repotest.Path("testdata/models/stories-5m-q8_0.gguf"), filepath.Join(dir, "advised.gguf"), map[string]any{
		"general.sampling.temp": float32(0.5), "general.sampling.mirostat": int32(2),
	})
	for defaults, follows := range map[string]bool{config.Contract: false, config.ModelFile: true} {
		var log lines
		device, err := sim.Open(sim.Options{}, rpctest.Logger(t))
		require.NoError(t, err)
		c := &config.Config{
			Flags:    app.Flags{Listen: "unix:" + filepath.Join(t.TempDir(), "worker"), DrainTimeout: time.Second},
			WorkerID: "w", Models: dir, Load: []string{"advised"}, Defaults: defaults,
		}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, c, device, hclog.New(&hclog.LoggerOptions{Output: &log})) }()
		require.Eventually(t, func() bool { return strings.Contains(log.String(), "model loaded") }, time.Minute, time.Millisecond)
		end()
		require.NoError(t, <-ended)
		require.Equal(t, follows, strings.Contains(log.String(), "general.sampling.mirostat needs a feature that Millrace lacks"), log.String())
	}
}
