package relaybench

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/load"
	"github.com/millrace/millrace/services/bench/internal/stats"
)

func config() Config {
	return Config{
		Streams: 100, Rate: 20000, Duration: 5 * time.Second, Pairs: 10, Burst: 1000, BurstTokens: 50, Connections: 1, Prompt: 16,
	}
}

func TestTheStagesFollowFromRateAndStreams(t *testing.T) {
	c := config()
	require.NoError(t, c.Validate())
	require.Equal(t, 5*time.Millisecond, c.interval())
	require.Equal(t, load.Size{Prompt: 16, Output: 1000}, c.size())
	require.GreaterOrEqual(t, c.kvTokens(), uint64(101*1016))
	require.GreaterOrEqual(t, c.context(), uint32(1017))
}

func TestAStepIsShorterByWhatTheRateLacks(t *testing.T) {
	c := config()
	require.Equal(t, 4*time.Millisecond, c.shorter(5*time.Millisecond, 100/0.006))
	require.Equal(t, 3500*time.Microsecond, c.shorter(4*time.Millisecond, 100/0.0055))
	require.Equal(t, 500*time.Microsecond, c.shorter(time.Millisecond, 1000), "a step never vanishes")
	require.Equal(t, "sim:step=4.5ms,prefill=0s,decode=0s", device(4500*time.Microsecond))
}

func TestWhatCannotBeMeasuredIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no streams":            {func(c *Config) { c.Streams = 0 }, "--streams 0"},
		"more than a batch has": {func(c *Config) { c.Burst = 1025 }, "--burst 1025"},
		"too slow a rate":       {func(c *Config) { c.Rate = 50 }, "--rate 50"},
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

func TestALostTokenOrCallFailsTheRunAndTimingDoesNot(t *testing.T) {
	c := config()
	whole := func() *Report {
		return &Report{CPUPerToken: 999, Steady: load.Report{OK: 100, Tokens: 100000}, Burst: load.Report{OK: 1000, Tokens: 50000}}
	}
	require.NoError(t, whole().check(&c))
	lost := whole()
	lost.Steady.Tokens--
	require.ErrorIs(t, lost.check(&c), ErrFailed)
	failed := whole()
	failed.Burst.Failed = 1
	require.ErrorIs(t, failed.check(&c), ErrFailed)
}

func TestAddedTimeIsTheDifferenceOfTheMedians(t *testing.T) {
	var worker, scheduler stats.Histogram
	for i := range 101 {
		worker.Add(time.Duration(i) * time.Microsecond)
		scheduler.Add(time.Duration(i)*time.Microsecond + 200*time.Microsecond)
	}
	require.InDelta(t, 200, firstToken(&worker, &scheduler).AddedP50, 1)
}

func TestEveryBarStandsBesideItsFigure(t *testing.T) {
	var text bytes.Buffer
	r := &Report{
		CPUPerToken: 12.345, Steady: load.Report{PeakStreams: 100, TokensPerSecond: 19876, Tokens: 4, Messages: 3},
		Idle: FirstToken{AddedP50: 321}, Burst: load.Report{PeakStreams: 1000, Failed: 2},
	}
	r.Print(&text)
	for _, want := range []string{"12.35 us", "<= 20 us", "19876 tokens/s over 100 streams", "0.7500", "321 us", "< 500 us", "1000 streams at once"} {
		require.Contains(t, text.String(), want)
	}
}

func TestAProgramThatIsNotThereIsNamedWithWhatToDo(t *testing.T) {
	c := config()
	c.Worker, c.Scheduler = "/nonexistent/worker", "/nonexistent/scheduler"
	_, err := Run(t.Context(), c, func(string, ...any) {})
	require.ErrorContains(t, err, "make build")
	require.ErrorContains(t, err, "--worker")
}
