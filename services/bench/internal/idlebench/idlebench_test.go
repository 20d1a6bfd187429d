package idlebench

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { simfleettest.Main(m) }

func TestEachSizeHasALine(t *testing.T) {
	rpctest.NoLeaks(t)
	path := simfleettest.Use(t, simfleettest.Ignorant)
	report, err := Run(t.Context(), Config{Scheduler: path, Worker: path, Sizes: []int{1, 4}, Duration: time.Second}, func(string, ...any) {})
	require.NoError(t, err)
	require.Len(t, report.Lines, 2)
	for i, n := range []int{1, 4} {
		l := report.Lines[i]
		require.Equal(t, n, l.Workers)
		require.Positive(t, l.RSS)
		require.InDelta(t, 1e6*l.Cores/float64(n), l.PerWorker, 1e-6)
	}
	v, ok := report.Figure("idle/4", "rss_mb")
	require.True(t, ok)
	require.InDelta(t, float64(report.Lines[1].RSS)/1e6, v, 1e-9)
	_, ok = report.Figure("idle/300", "cores")
	require.False(t, ok, "what was not measured has no figure")
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "300 workers: < 10 % of one core")
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	valid := Config{Sizes: []int{1, 300}, Settle: time.Second, Duration: 30 * time.Second}
	require.NoError(t, valid.Validate())
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no size":          {func(c *Config) { c.Sizes = nil }, "--sizes names none"},
		"no worker":        {func(c *Config) { c.Sizes = []int{3, 0} }, "--sizes 0"},
		"too many":         {func(c *Config) { c.Sizes = []int{100_000} }, "--sizes 100000"},
		"a time back":      {func(c *Config) { c.Settle = -1 }, "--settle"},
		"too short a time": {func(c *Config) { c.Duration = time.Millisecond }, "--duration 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}
