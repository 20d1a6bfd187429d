package load

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestScrapeSumAddsEverySeriesOfOneMetric(t *testing.T) {
	page := `# HELP m_sum what it is
# TYPE m histogram
m_bucket{le="0.1"} 7
m_sum{model="a"} 1.5
m_sum{model="b} 9 {c"} 2e0 1700000000
m_sum_of_others 100
m_summary 100
m_count 3
n 4
`
	sum, err := sumOf(strings.NewReader(page), "m_sum")
	require.NoError(t, err)
	require.InDelta(t, 3.5, sum, 1e-12)
	sum, err = sumOf(strings.NewReader(page), "n")
	require.NoError(t, err)
	require.InDelta(t, 4, sum, 0)
	_, err = sumOf(strings.NewReader(page), "m_su")
	require.ErrorIs(t, err, ErrMetric)
	_, err = sumOf(strings.NewReader("m x\n"), "m")
	require.ErrorContains(t, err, `"m x"`)
	_, err = sumOf(strings.NewReader("m{a=\"b\"}\n"), "m")
	require.ErrorContains(t, err, "no value")
}

func TestIdleIsTheTimeWithoutSteps(t *testing.T) {
	require.Equal(t, Idle{Seconds: 4, Share: 0.25, Steps: 3}, idleOf(4*time.Second, 3))
	require.Equal(t, Idle{Seconds: 1, Share: 0, Steps: 1.01}, idleOf(time.Second, 1.01), "steps counted at the edges are no work above the time")
	require.Equal(t, Idle{}, idleOf(0, 0))
}

func TestWatchIdleUsesFirstAndLastScrape(t *testing.T) {
	var scrapes atomic.Int64
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if scrapes.Add(1) == 3 {
			defer close(done)
		}
		_, _ = fmt.Fprintf(w, "%s %d\n", StepSeconds, 1000) // a device that does nothing
	}))
	defer server.Close()
	got, err := WatchIdle(t.Context(), server.URL, done)
	require.NoError(t, err)
	require.Zero(t, got.Steps)
	require.InDelta(t, 1, got.Share, 0)
	require.Positive(t, got.Seconds)
}

func TestWatchIdleNamesThePageThatFails(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, err := WatchIdle(t.Context(), server.URL+"/metrics", nil)
	require.ErrorContains(t, err, "/metrics answers 404")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = WatchIdle(ctx, server.URL, nil)
	require.ErrorIs(t, err, context.Canceled)
}
