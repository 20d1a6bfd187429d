package restart

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/simfleet/simfleettest"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { simfleettest.Main(m) }

func TestARoundIsSummedUpFromItsCalls(t *testing.T) {
	at := func(ms int, e ending) attempt { return attempt{time.Duration(ms) * time.Millisecond, e} }
	for name, tc := range map[string]struct {
		attempts []attempt
		want     Round
	}{
		"no call":   {nil, Round{Listened: 7, FirstRight: -1, AllRight: -1}},
		"all right": {[]attempt{at(1, right), at(600, right)}, Round{7, 1, 1, 2, 0, 0, 1, 1}},
		"refused first": {[]attempt{at(0, refused), at(10, wrong), at(20, right), at(30, wrong), at(40, right), at(700, right)},
			Round{7, 20, 40, 6, 2, 1, 0.5, 1}},
		"never right for good": {[]attempt{at(3, right), at(800, right), at(900, wrong)}, Round{7, 3, -1, 3, 1, 0, 1, 0.5}},
		"none answered soon":   {[]attempt{at(3, refused), at(500, right)}, Round{7, 500, 500, 2, 0, 1, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, sum(7*time.Millisecond, tc.attempts)) })
	}
}

func config(t *testing.T, mode string) Config {
	t.Helper()
	path := simfleettest.Use(t, mode)
	return Config{
		Scheduler: path, Worker: path, Workers: 3, Prefix: 64, Every: 50 * time.Millisecond, For: time.Second, Repeat: 1, Seed: 9,
	}
}

func TestASchedulerThatKnowsTheCachesIsRight(t *testing.T) {
	rpctest.NoLeaks(t)
	report, err := Run(t.Context(), config(t, simfleettest.Knowing), func(string, ...any) {})
	require.NoError(t, err)
	require.Len(t, report.Rounds, 1)
	require.Equal(t, 20, report.Rounds[0].Calls)
	require.Zero(t, report.Rounds[0].Wrong)
	require.InDelta(t, 1, report.RightLater.Min, 0)
	v, ok := report.Figure("restart", "all_right_ms")
	require.True(t, ok)
	require.GreaterOrEqual(t, v, 0.0)
	var text bytes.Buffer
	report.Print(&text)
	require.Contains(t, text.String(), "100.0 %")
}

func TestASchedulerThatDoesNotIsWrong(t *testing.T) {
	rpctest.NoLeaks(t)
	report, err := Run(t.Context(), config(t, simfleettest.Ignorant), func(string, ...any) {})
	require.NoError(t, err)
	require.Positive(t, report.Rounds[0].Wrong)
	require.Less(t, report.RightLater.Max, 1.0)
}

func TestCallsThatFailOtherwiseFailTheRun(t *testing.T) {
	rpctest.NoLeaks(t)
	_, err := Run(t.Context(), config(t, simfleettest.Failing), func(string, ...any) {})
	require.ErrorIs(t, err, ErrFailed)
	require.ErrorContains(t, err, "out of luck")
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	valid := Config{Workers: 8, Prefix: 512, Every: 10 * time.Millisecond, For: 2 * time.Second, Repeat: 5}
	require.NoError(t, valid.Validate())
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"one worker, which is always right": {func(c *Config) { c.Workers = 1 }, "--workers 1"},
		"a prefix without a key":            {func(c *Config) { c.Prefix = 100 }, "--prefix 100"},
		"no pause":                          {func(c *Config) { c.Every = 0 }, "--every 0s"},
		"an end before the bar":             {func(c *Config) { c.For = 500 * time.Millisecond }, "--for 500ms"},
		"no restart":                        {func(c *Config) { c.Repeat = 0 }, "--repeat 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c := valid
			tc.change(&c)
			require.ErrorContains(t, c.Validate(), tc.want)
		})
	}
}
