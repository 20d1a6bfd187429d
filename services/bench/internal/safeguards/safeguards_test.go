package safeguards

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { simfleettest.Main(m) }

var names = []string{Bare, "logs", "measures", "keys", "tls", All}

func config(path string) Config {
	return Config{Scheduler: path, Worker: path, Streams: 3, Rate: 1000, Tokens: 5, Prompt: 4, Duration: 100 * time.Millisecond, Rounds: 2}
}

func TestEveryRowIsRunAndHeldAgainstBare(t *testing.T) {
	rpctest.NoLeaks(t)
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	report, err := Run(t.Context(), config(simfleettest.Use(t, simfleettest.Ignorant)), func(string, ...any) {})
	require.NoError(t, err)
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Empty(t, left, "keys and certificates are gone")
	require.Len(t, report.Rows, len(names))
	for i, row := range report.Rows {
		require.Equal(t, names[i], row.Name)
		require.Positive(t, row.TokensPerSecond.Min)
	}
	require.Zero(t, report.Rows[0].Cost)
	var text bytes.Buffer
	report.Print(&text)
	for _, name := range names {
		require.Contains(t, text.String(), "\n"+name+" ")
	}
}

func TestACallThatFailsFailsTheRun(t *testing.T) {
	rpctest.NoLeaks(t)
	_, err := Run(t.Context(), config(simfleettest.Use(t, simfleettest.Failing)), func(string, ...any) {})
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "bare: ")
}

func TestAllHasTheFlagsOfEveryRowAndNoAddressTwice(t *testing.T) {
	dir := t.TempDir()
	list, err := rows(t.Context(), dir)
	require.NoError(t, err)
	require.Empty(t, list[0].guard)
	all := list[len(list)-1]
	for _, r := range list {
		for _, pair := range [][2][]string{{r.worker, all.worker}, {r.guard.scheduler, all.guard.scheduler}} {
			for _, flag := range pair[0] {
				if flag[0] == '-' {
					require.Contains(t, pair[1], flag)
				}
			}
		}
	}
	require.Len(t, all.dial, 2)
	pages := slices.Concat(list[2].pages, all.pages)
	require.Len(t, pages, 4)
	slices.Sort(pages)
	require.Len(t, slices.Compact(pages), 4)

	text, err := os.ReadFile(filepath.Join(dir, "keys.yaml"))
	require.NoError(t, err)
	_, err = auth.Parse(string(text))
	require.NoError(t, err)
	require.Contains(t, string(text), "tokens_per_minute", "what is counted costs too")
}

func TestCostsAreDifferencesWithinARound(t *testing.T) {
	bare := []turn{{scheduler: 4, worker: 6, rate: 10}, {scheduler: 8, worker: 12, rate: 10}, {scheduler: 5, worker: 5, rate: 10}}
	row := sum(All, []turn{{scheduler: 5, worker: 6, rate: 9}, {scheduler: 12, worker: 12, rate: 9}, {scheduler: 8, worker: 5, rate: 9}}, bare)
	require.InDelta(t, 0.2, row.Cost.Median, 1e-9)
	require.InDelta(t, 0.1, row.Cost.Min, 1e-9)
	require.InDelta(t, 0.3, row.Cost.Max, 1e-9)
	require.Equal(t, stats.Spread{Median: 9, Min: 9, Max: 9}, row.TokensPerSecond)
	r := Report{Rows: []Row{sum(Bare, bare, bare), row}}
	for metric, want := range map[string]float64{"cost": 0.2, "cpu_us": 14} {
		got, ok := r.Figure(All, metric)
		require.True(t, ok)
		require.InDelta(t, want, got, 1e-9)
	}
	_, ok := r.Figure("tls", "cost")
	require.False(t, ok)
	var text bytes.Buffer
	r.Print(&text)
	require.Contains(t, text.String(), "all together: +20.0 %, bar +25 %: held")
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	good := config("x")
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(*Config){
		"--streams 0":    func(c *Config) { c.Streams = 0 },
		"--rate 2":       func(c *Config) { c.Rate = 2 },
		"--tokens 0":     func(c *Config) { c.Tokens = 0 },
		"--prompt 2000":  func(c *Config) { c.Prompt = 2000 },
		"--rounds 0":     func(c *Config) { c.Rounds = 0 },
		"--duration 1ms": func(c *Config) { c.Duration = time.Millisecond },
	} {
		c := good
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
