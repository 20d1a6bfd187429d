package telemetry_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/telemetry/telemetrytest"
)

// identity is the identity of the tests.
var identity = telemetry.Identity{Program: "millrace-test", Version: "0.1.0", Instance: "t1"}

// open opens the telemetry that the variables configure. The libraries read the environment
// themselves.
func open(t *testing.T, variables ...string) *telemetry.Telemetry {
	t.Helper()
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	s := telemetry.FromEnvironment(os.Getenv)
	require.NoError(t, s.Check())
	sent, err := telemetry.Open(t.Context(), s, identity, rpctest.Logger(t))
	require.NoError(t, err)
	return sent
}

// delivered returns a collector that has received what record recorded. Closing waits a few seconds
// for the collector. If the machine stopped this process for a good part of them, the test repeats
// everything.
func delivered(t *testing.T, record func(*telemetry.Telemetry), variables ...string) *telemetrytest.Collector {
	t.Helper()
	for {
		c := telemetrytest.Start(t)
		sent := open(t, append(c.Environment(), variables...)...)
		record(sent)
		stop := rpctest.WatchStalls()
		err := sent.Close()
		if late := stop(); err == nil || late < time.Second {
			require.NoError(t, err)
			return c
		}
	}
}

func TestOpenWithoutSignalsMakesNothing(t *testing.T) {
	sent, err := telemetry.Open(t.Context(), telemetry.Settings{}, identity, rpctest.Logger(t))
	require.NoError(t, err)
	require.Nil(t, sent.Tracer())
	require.Nil(t, sent.Generations)
	sent.Generations.Record(t.Context(), telemetry.Generation{Model: "m"})
	require.NoError(t, sent.Close())
}

func TestSpansAndMetricsReachTheCollector(t *testing.T) {
	rpctest.NoLeaks(t)
	c := delivered(t, func(sent *telemetry.Telemetry) {
		_, span := sent.Tracer().Start(t.Context(), "a span")
		span.SetAttributes(telemetry.WorkerID.String(strings.Repeat("é", 1000)))
		span.End()
		sent.Generations.Record(t.Context(), telemetry.Generation{Model: "m", Input: 5, Output: 3, Continuations: 1, Took: time.Second})
	})

	spans := c.Spans()
	require.Len(t, spans, 1)
	require.Equal(t, "a span", spans[0].GetName())
	require.Equal(t, "millrace-test", spans[0].Service)
	text := spans[0].Attribute(string(telemetry.WorkerID)).GetStringValue()
	require.NotEmpty(t, text)
	require.LessOrEqual(t, len([]rune(text)), 255, "texts have an end")
	var names []string
	for _, m := range c.Metrics("millrace-test") {
		names = append(names, m.GetName())
	}
	require.Subset(t, names, []string{"gen_ai.server.request.duration", "gen_ai.client.token.usage"})
}

func TestServiceNameOfTheEnvironment(t *testing.T) {
	c := delivered(t, func(sent *telemetry.Telemetry) {
		require.Nil(t, sent.Generations)
		_, span := sent.Tracer().Start(t.Context(), "a span")
		span.End()
	}, "OTEL_SERVICE_NAME=mine", "OTEL_METRICS_EXPORTER=none")
	require.Len(t, c.Spans(), 1)
	require.Equal(t, "mine", c.Spans()[0].Service)
}

func TestUnsampledSpansAreNotExported(t *testing.T) {
	c := delivered(t, func(sent *telemetry.Telemetry) {
		_, span := sent.Tracer().Start(t.Context(), "a span")
		require.False(t, span.IsRecording())
		span.End()
	}, "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0")
	require.Empty(t, c.Spans())
}
