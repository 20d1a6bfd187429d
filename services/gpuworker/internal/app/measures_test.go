package app

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
	"github.com/millrace/millrace/internal/modeltest"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// measured is a device with every reading that a GPU has.
type measured struct{ *sim.Device }

func (m measured) Info() (engine.DeviceInfo, error) {
	info, err := m.Device.Info()
	temperature, power, bytes, errs := 40, 350_000, uint64(1<<40), uint64(0)
	info.TemperatureC, info.PowerMW, info.PhysicalTotal, info.PhysicalFree = &temperature, &power, &bytes, &bytes
	info.Errors, info.CorrectedErrors = &errs, &errs
	return info, err
}

// scraper reads the measures of a worker.
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

// sums are the values of a scrape, by measure: all series of one added up, and of a histogram its observations.
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
		now := s.sums(t)
		if holds(now) {
			return
		}
		require.True(t, time.Now().Before(deadline), "until %s: %v", what, now)
	}
}

func root() string { return modeltest.Path("") }

func TestAWorkerServesEveryDocumentedMeasureAndTheyMove(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	c := &config.Config{
		Listen: "unix:" + filepath.Join(dir, "worker"), MetricsListen: "unix:" + filepath.Join(dir, "measures"), WorkerID: "w",
		Load: []string{"stories"}, Models: filepath.Join(root(), "models"), DrainTimeout: time.Minute,
	}
	device, err := sim.Open(sim.Options{Reserved: 16, DecodeTime: time.Millisecond}, rpctest.Logger(t))
	require.NoError(t, err)
	// Braked, a step takes so long that a request of 400 tokens is seen while it runs, however late the look at it comes.
	var brake atomic.Bool
	braked := enginetest.Intercept(measured{device}, enginetest.Hooks{Wait: func() error {
		if brake.Load() {
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}})
	ctx, signal := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, c, braked, rpctest.Logger(t)) }()
	s := newScraper(t, filepath.Join(dir, "measures"))
	require.Eventually(t, func() bool {
		code, _, err := s.get(t.Context(), "/readyz") // a socket is a file before it listens
		return err == nil && code == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	before := s.sums(t)
	for _, name := range monitortest.Documented(t, "Measures of a worker") {
		require.Contains(t, before, name, "a worker with a loaded model has every measure")
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
	s.until(t, "it runs", func(now map[string]float64) bool { return now["millrace_running_sequences"] == 1 })
	cancel()
	s.until(t, "it is counted as cancelled, and does not run", func(now map[string]float64) bool {
		return now["millrace_cancelled_sequences_total"] == 1 && now["millrace_cancel_to_free_steps"] == 1 &&
			now["millrace_running_sequences"] == 0 // which the loop says in its next round
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
	_, err = d.DialContext(t.Context(), "unix", filepath.Join(dir, "measures"))
	require.Error(t, err, "nobody listens any more")
}

func TestAPortThatIsTakenEndsTheWorkerBeforeItServes(t *testing.T) {
	rpctest.NoLeaks(t)
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	c := &config.Config{
		Listen: "unix:" + filepath.Join(t.TempDir(), "worker"), MetricsListen: taken.Addr().String(), WorkerID: "w",
		Models: filepath.Join(root(), "models"),
	}
	device, err := sim.Open(sim.Options{}, rpctest.Logger(t))
	require.NoError(t, err)
	require.ErrorContains(t, serve(t.Context(), c, device, rpctest.Logger(t)), taken.Addr().String())
}
