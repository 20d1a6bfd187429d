package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/internal/repotest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// sensors is a simulated device with every reading that a GPU has.
type sensors struct{ *sim.Device }

func (m sensors) Info() (engine.DeviceInfo, error) {
	info, err := m.Device.Info()
	temperature, power, bytes, errs := 40, 350_000, uint64(1<<40), uint64(0)
	info.TemperatureC, info.PowerMW, info.PhysicalTotal, info.PhysicalFree = &temperature, &power, &bytes, &bytes
	info.Errors, info.CorrectedErrors = &errs, &errs
	return info, err
}

// scraper reads the metrics of a worker.
type scraper struct{ client *http.Client }

func newScraper(t *testing.T, socket string) *scraper {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &scraper{&http.Client{Transport: transport, Timeout: time.Minute}}
}

func (s *scraper) get(ctx context.Context, path string) (code int, body string, err error) {
	in, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://worker"+path, nil)
	if err != nil {
		return 0, "", err
	}
	out, err := s.client.Do(in)
	if err != nil {
		return 0, "", err
	}
	raw, err := io.ReadAll(out.Body)
	return out.StatusCode, string(raw), errors.Join(err, out.Body.Close())
}

// sums returns the values of a scrape by metric: the sum of its series, and for a histogram its
// observations.
func (s *scraper) sums(t *testing.T) map[string]float64 {
	t.Helper()
	code, body, err := s.get(t.Context(), "/metrics")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	return monitortest.Sums(t, body)
}

// until scrapes until the sums are as wanted.
func (s *scraper) until(t *testing.T, what string, holds func(map[string]float64) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		sums := s.sums(t)
		if holds(sums) {
			return
		}
		require.True(t, time.Now().Before(deadline), "until %s: %v", what, sums)
	}
}

func root() string { return repotest.Path("") }

func TestWorkerServesEveryDocumentedMetric(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	c := &config.Config{
		Flags: app.Flags{
			Listen: "unix:" + filepath.Join(dir, "worker"), MetricsListen: "unix:" + filepath.Join(dir, "metrics"), DrainTimeout: time.Minute,
		},
		WorkerID: "w", Load: []string{"stories"}, Models: filepath.Join(root(), "models"),
	}
	device, err := sim.Open(sim.Options{Reserved: 16, DecodeTime: time.Millisecond}, rpctest.Logger(t))
	require.NoError(t, err)
	// With the brake on, a step takes so long that a scrape sees a request of 400 tokens while it
	// runs.
	var brake atomic.Bool
	braked := enginetest.Intercept(sensors{device}, enginetest.Hooks{Wait: func() error {
		if brake.Load() {
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}})
	ctx, signal := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, c, braked, rpctest.Logger(t)) }()
	s := newScraper(t, filepath.Join(dir, "metrics"))
	require.Eventually(t, func() bool {
		code, _, err := s.get(t.Context(), "/readyz") // a socket is a file before it listens
		return err == nil && code == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	before := s.sums(t)
	for _, name := range monitortest.Documented(t, "Metrics of a worker") {
		require.Contains(t, before, name, "a worker with a loaded model has every metric")
	}

	conn, err := rpc.Dial(c.Listen, "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := pb.NewInferenceServiceClient(conn)
	generate := func(ctx context.Context, tokens int32) (pb.InferenceService_GenerateClient, error) {
		ignore := true
		return client.Generate(ctx, &pb.GenerateRequest{
			Model: "stories", Input: &pb.GenerateRequest_Prompt{Prompt: strings.Repeat("Once upon a time there was a girl. ", 8)},
			Stopping: &pb.Stopping{MaxTokens: &tokens, IgnoreEos: &ignore},
		})
	}
	for range 3 {
		stream, err := generate(t.Context(), 20)
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
	}
	brake.Store(true)
	leaving, cancel := context.WithCancel(t.Context())
	stream, err := generate(leaving, 400)
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	s.until(t, "it runs", func(sums map[string]float64) bool { return sums["millrace_running_sequences"] == 1 })
	cancel()
	s.until(t, "it is counted as cancelled, and does not run", func(sums map[string]float64) bool {
		return sums["millrace_cancelled_sequences_total"] == 1 && sums["millrace_cancel_to_free_steps"] == 1 &&
			sums["millrace_running_sequences"] == 0 // which the loop publishes in its next round
	})
	brake.Store(false)
	loads, err := pb.NewModelServiceClient(conn).LoadModel(t.Context(), &pb.LoadModelRequest{Model: "nobody"})
	for err == nil {
		_, err = loads.Recv()
	}
	require.NotErrorIs(t, err, io.EOF)

	after := s.sums(t)
	for _, name := range []string{
		"millrace_steps_total", "millrace_prompt_tokens_total", "millrace_generated_tokens_total", "millrace_cancelled_sequences_total",
		"millrace_model_loads_total", "millrace_step_seconds", "millrace_step_sequences", "millrace_step_tokens",
		"millrace_queue_wait_seconds", "millrace_first_token_seconds", "millrace_inter_token_seconds",
		"millrace_cancel_to_free_seconds", "millrace_cancel_to_free_steps", "millrace_prefix_lookups_total",
		"millrace_prefix_hits_total", "millrace_prefix_tokens_total", "millrace_admitted_prompt_tokens_total", "millrace_request_seconds",
		"millrace_finished_sequences_total", "millrace_requests_total", "grpc_server_started_total", "grpc_server_handled_total",
		"grpc_server_handling_seconds", "millrace_refused_calls_total",
	} {
		require.Greater(t, after[name], before[name], name)
	}
	require.GreaterOrEqual(t, after["millrace_generated_tokens_total"], 61.0)
	require.Zero(t, after["millrace_steps_after_cancel_total"])
	require.Zero(t, after["millrace_running_sequences"])
	require.Equal(t, before["millrace_kv_blocks"], after["millrace_kv_blocks"], "the states add up to the cache")

	signal()
	require.NoError(t, <-ended)
	var d net.Dialer
	_, err = d.DialContext(t.Context(), "unix", filepath.Join(dir, "metrics"))
	require.Error(t, err, "the port is closed")
}

func TestPortInUseEndsTheWorkerAtStart(t *testing.T) {
	rpctest.NoLeaks(t)
	var lc net.ListenConfig
	occupied, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, occupied.Close()) }()
	c := &config.Config{
		Flags:    app.Flags{Listen: "unix:" + filepath.Join(t.TempDir(), "worker"), MetricsListen: occupied.Addr().String()},
		WorkerID: "w", Models: filepath.Join(root(), "models"),
	}
	device, err := sim.Open(sim.Options{}, rpctest.Logger(t))
	require.NoError(t, err)
	require.ErrorContains(t, serve(t.Context(), c, device, rpctest.Logger(t)), occupied.Addr().String())
}
