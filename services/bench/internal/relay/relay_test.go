package relay

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func config() Config {
	return Config{
		Connections: 1, Streams: 100, Rates: []float64{20000}, Rounds: 2, Duration: 5 * time.Second,
		Pairs: 10, Burst: 1000, BurstTokens: 50, Prompt: 16,
	}
}

func TestFleetIsLargeEnoughForTheRate(t *testing.T) {
	c := config()
	require.NoError(t, c.Validate())
	require.Equal(t, 5*time.Millisecond, c.interval(20000))
	require.Equal(t, load.Size{Prompt: 16, Output: 1000}, c.size(20000, c.Duration))
	r := c.fleet(20000, 5*time.Millisecond)
	require.GreaterOrEqual(t, r.KVTokens, uint64((100+probes)*1016))
	require.GreaterOrEqual(t, r.Context, uint32(1017))
	require.EqualValues(t, 1000, r.Sequences)
}

func TestNextStepCorrectsTheRate(t *testing.T) {
	c := config()
	require.Equal(t, 4*time.Millisecond, c.nextStep(5*time.Millisecond, 20000, 100/0.006))
	require.Equal(t, 3500*time.Microsecond, c.nextStep(4*time.Millisecond, 20000, 100/0.0055))
	require.Equal(t, 500*time.Microsecond, c.nextStep(time.Millisecond, 20000, 1000), "a step never vanishes")
	require.Equal(t, 4500*time.Microsecond, c.nextStep(4*time.Millisecond, 20000, 100/0.0045), "after a trial that a busy machine disturbed")
	require.Equal(t, 5*time.Millisecond, c.nextStep(4*time.Millisecond, 20000, 100/0.001), "nor is it longer than the interval")
	require.Equal(t, "sim:step=4.5ms,prefill=0s,decode=0s", device(4500*time.Microsecond))
}

func TestConfigIsValidated(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no streams":            {func(c *Config) { c.Streams = 0 }, "--streams 0"},
		"more than a batch has": {func(c *Config) { c.Burst = 1025 }, "--burst 1025"},
		"too slow a rate":       {func(c *Config) { c.Rates = []float64{20000, 50} }, "--rates 50"},
		"no rate":               {func(c *Config) { c.Rates = nil }, "--rates is empty"},
		"no rounds":             {func(c *Config) { c.Rounds = 0 }, "--rounds 0"},
		"no pairs":              {func(c *Config) { c.Pairs = 0 }, "--pairs 0"},
		"no time":               {func(c *Config) { c.Duration = 0 }, "--duration 0s"},
		"no connection":         {func(c *Config) { c.Connections = 0 }, "--connections 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config()
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}

func TestCheckCompleteFindsLostTokensAndCalls(t *testing.T) {
	require.NoError(t, checkComplete("burst", &load.Report{Tokens: 5000}, 100, 50))
	require.ErrorIs(t, checkComplete("burst", &load.Report{Tokens: 4999}, 100, 50), ErrFailed)
	failed := &load.Report{Tokens: 5000, Failed: 1, Errors: []load.ErrorCount{{Count: 1, Example: "no worker"}}}
	require.ErrorContains(t, checkComplete("burst", failed, 100, 50), "no worker")
}

// sampleOf returns a sample of 1000 tokens, 4 of which are probes.
func sampleOf(cpu, ttft time.Duration) sample {
	s := sample{streams: load.Report{Tokens: 996, Messages: 498, TokensPerSecond: 2000}, cpu: cpu, worker: 2 * cpu}
	s.ttft.AddN(ttft, 4)
	return s
}

func TestTargetIsTheMedianOfItsSamples(t *testing.T) {
	w := summarise("nginx", []sample{sampleOf(9*time.Millisecond, time.Millisecond), sampleOf(30*time.Millisecond, 3*time.Millisecond),
		sampleOf(10*time.Millisecond, 2*time.Millisecond)}, stats.Summary{P50: 7})
	require.Equal(t, stats.Spread{Median: 10, Min: 9, Max: 30}, w.CPUPerToken)
	require.InDelta(t, 20, w.WorkerPerToken.Median, 1e-9)
	require.InDelta(t, 0.5, w.MessagesPerToken.Median, 1e-9)
	require.InDelta(t, 2, w.BusyP50.Median, 0.01)
	require.InDelta(t, 7, w.Idle.P50, 1e-9)
}

func TestReportComparesWithNginx(t *testing.T) {
	r := &Report{Rates: []Stage{{Rate: 20000, Targets: []Target{
		{Name: workerName, Idle: stats.Summary{P50: 5, P99: 6}},
		{Name: nginxName, CPUPerToken: stats.Spread{Median: 10}, Idle: stats.Summary{P50: 10, P99: 20}, BusyP50: stats.Spread{Median: 4},
			BusyP99: stats.Spread{Median: 8}},
		{Name: schedulerName, CPUPerToken: stats.Spread{Median: 9}, Idle: stats.Summary{P50: 11, P99: 20}, BusyP50: stats.Spread{Median: 2},
			BusyP99: stats.Spread{Median: 12}},
	}}}}
	for metric, want := range map[string]float64{
		"cpu_us": 9, "cpu_of_nginx": 0.9, "idle_p50_of_nginx": 1.1, "idle_p99_of_nginx": 1, "busy_p50_of_nginx": 0.5, "busy_p99_of_nginx": 1.5,
	} {
		got, ok := r.Figure("20000", metric)
		require.True(t, ok, metric)
		require.InDelta(t, want, got, 1e-9, metric)
	}
	_, ok := r.Figure("40000", "cpu_us")
	require.False(t, ok)
	var text bytes.Buffer
	r.Print(&text)
	require.Contains(t, text.String(), "CPU for each token: 0.900 of nginx's, bar 1: held")
	require.Contains(t, text.String(), "TTFT idle, p50: 1.100 of nginx's, bar 1: MISSED")
	require.NotContains(t, text.String(), "WITHOUT NGINX")
}

func TestReportWithoutNginxSaysSo(t *testing.T) {
	r := &Report{NoNginx: errNginxMissing.Error(), Rates: []Stage{{Rate: 5000, Targets: []Target{{Name: workerName}, {Name: schedulerName}}}}}
	_, ok := r.Figure("5000", "cpu_of_nginx")
	require.False(t, ok)
	var text bytes.Buffer
	r.Print(&text)
	require.Contains(t, text.String(), "WITHOUT NGINX  nginx is not installed")
	require.Contains(t, text.String(), "apt-get install nginx-light")
	require.NotContains(t, text.String(), "bar 1")
}

func TestNginxConfigNamesTheWorker(t *testing.T) {
	var text strings.Builder
	require.NoError(t, nginxConfig.Execute(&text, map[string]any{
		"Root": true, "Dir": "/scratch", "Listen": "127.0.0.1:1", "Worker": "127.0.0.1:2",
	}))
	for _, want := range []string{"user root;", "listen 127.0.0.1:1 http2;", "server 127.0.0.1:2;", "pid /scratch/nginx.pid;"} {
		require.Contains(t, text.String(), want)
	}
}

func TestRunNamesTheMissingProgram(t *testing.T) {
	c := config()
	c.Worker, c.Scheduler = "/nonexistent/worker", "/nonexistent/scheduler"
	_, err := Run(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "make build")
	require.ErrorContains(t, err, "--worker")
}
