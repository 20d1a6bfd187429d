package replay

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/bench/internal/proc/proctest"
	"github.com/millrace/millrace/services/bench/internal/stats"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { proctest.Main(m) }

// play runs a few calls over programs of a mode. It ignores ErrSaturated.
func play(t *testing.T, mode string, rows ...string) (*Report, error) {
	t.Helper()
	rpctest.NoLeaks(t)
	c := valid()
	c.Scheduler = proctest.Use(t, mode)
	c.Worker, c.Workers, c.Rows, c.Scale.Speed = c.Scheduler, 3, rows, 100
	report, err := Run(t.Context(), c, Synthetic(60, 5), func(string, ...any) {})
	require.NotNil(t, report)
	if mode != proctest.Failing && err != nil {
		require.ErrorIs(t, err, ErrSaturated)
	}
	return report, err
}

func TestRunPlaysEveryRowOnFreshWorkers(t *testing.T) {
	report, _ := play(t, proctest.Knowing, RowNames()...)
	require.Len(t, report.Rows, len(rows))
	for _, x := range report.Rows {
		require.EqualValues(t, 60, x.OK)
		require.Zero(t, x.Failed)
		require.Positive(t, x.First.Mean)
	}
	hits := func(name string) float64 { return report.row(name).HitRate }
	require.Greater(t, hits(oneScheduler), hits(traceInTurn))
	require.Greater(t, hits(traceOracle), hits(traceInTurn))
	require.InDelta(t, hits(traceOracle), *report.row(traceOracle).Foretold, 0.02, "the oracle knew the caches")
	require.LessOrEqual(t, hits(traceOracle), report.Reusable)
	for _, name := range []string{uniqueOne, uniqueLeast} {
		require.Zero(t, hits(name))
	}
	for _, metric := range []string{"speedup", "hit_of_oracle", "two_of_one", "unique_of_least"} {
		v, ok := report.Figure("compared", metric)
		require.True(t, ok, metric)
		require.Positive(t, v)
	}
	var text bytes.Buffer
	report.Print(&text)
	for _, name := range RowNames() {
		require.Contains(t, text.String(), name)
	}
}

func TestRunFindsASchedulerWithoutPrefixes(t *testing.T) {
	report, _ := play(t, proctest.Ignorant, oneScheduler, traceOracle)
	require.Less(t, *report.Compared.HitOfOracle, 0.9)
	require.Nil(t, report.Compared.Speedup, "round robin was not played")
	_, ok := report.Figure("compared", "speedup")
	require.False(t, ok)
	_, ok = report.Figure(traceInTurn, "mean_ms")
	require.False(t, ok)
}

func TestRunFailsAndReportsFailedCalls(t *testing.T) {
	report, err := play(t, proctest.Failing, traceInTurn)
	require.ErrorIs(t, err, ErrFailed)
	require.Equal(t, 30, report.Rows[0].Failed)
	require.Contains(t, report.Rows[0].Errors[0], "30 x Internal")
	require.Contains(t, report.Rows[0].Errors[0], "failing on purpose")
}

func TestRunFailsOnABusyMachine(t *testing.T) {
	quiet := Result{Row: "a", OK: 5, Use: Use{Busy: 0.5}, Late: stats.Summary{P99: 3}}
	busy, late := quiet, quiet
	busy.Use.Busy, late.Late.P99 = 0.9, 40
	for name, tc := range map[string]struct {
		rows []Result
		want error
	}{
		"quiet":                    {[]Result{quiet, quiet}, nil},
		"busy processors":          {[]Result{quiet, busy}, ErrSaturated},
		"calls that left late":     {[]Result{late}, ErrSaturated},
		"failed calls come before": {[]Result{busy, {Row: "b", OK: 4, Failed: 1}}, ErrFailed},
		"calls that were cut off":  {[]Result{{Row: "b", OK: 4}}, ErrFailed},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Report{Requests: 5, Rows: tc.rows}
			require.ErrorIs(t, r.check(), tc.want)
		})
	}
}

func TestCallsStartAtTheirTimes(t *testing.T) {
	s := Scale{Shrink: 8, Speed: 20}
	requests := Synthetic(10, 1)
	for i, j := range jobs(requests, s) {
		require.InDelta(t, float64(requests[i].Arrival)/20, float64(j.at), float64(time.Nanosecond))
		require.Equal(t, i, j.index)
		require.Equal(t, 64, j.block)
	}
}
