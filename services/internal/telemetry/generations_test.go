package telemetry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/telemetry"
)

// sum is a histogram's count and sum for one set of attributes.
type sum struct {
	count uint64
	total float64
}

// measured returns the sums of every metric, by its name and the attributes of the series.
func measured(t *testing.T, record func(*telemetry.Generations)) map[string]sum {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	g, err := telemetry.NewGenerations(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	record(g)
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	out := map[string]sum{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					out[m.Name+series(p.Attributes)] = sum{p.Count, p.Sum}
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					out[m.Name+series(p.Attributes)] = sum{p.Count, float64(p.Sum)}
				}
			}
		}
	}
	return out
}

func series(of attribute.Set) string {
	text := ""
	for _, key := range []attribute.Key{"gen_ai.operation.name", "gen_ai.request.model", "gen_ai.token.type", "error.type"} {
		if v, there := of.Value(key); there {
			text += " " + v.AsString()
		}
	}
	return text
}

func TestRecordFollowsTheConventions(t *testing.T) {
	got := measured(t, func(g *telemetry.Generations) {
		g.Record(t.Context(), telemetry.Generation{
			Model: "m", Chat: true, Input: 7, Output: 11, Continuations: 1, FirstToken: time.Second, Took: 3 * time.Second,
		})
	})
	require.Equal(t, map[string]sum{
		"gen_ai.server.request.duration chat m":      {1, 3},
		"gen_ai.server.time_to_first_token chat m":   {1, 1},
		"gen_ai.server.time_per_output_token chat m": {1, .2},
		"gen_ai.client.token.usage chat m input":     {1, 7},
		"gen_ai.client.token.usage chat m output":    {1, 11},
	}, got)
}

func TestContinuationsShareTheTime(t *testing.T) {
	got := measured(t, func(g *telemetry.Generations) {
		g.Record(t.Context(), telemetry.Generation{
			Model: "m", Input: 7, Output: 22, Continuations: 2, FirstToken: time.Second, Took: 3 * time.Second,
		})
	})
	require.Equal(t, sum{1, .2}, got["gen_ai.server.time_per_output_token text_completion m"])
}

func TestFailedGenerationHasNoTokenTimes(t *testing.T) {
	got := measured(t, func(g *telemetry.Generations) {
		g.Record(t.Context(), telemetry.Generation{
			Model: "m", Input: 7, Output: 2, Continuations: 1, FirstToken: time.Second, Took: 3 * time.Second,
			Err: status.Error(codes.DeadlineExceeded, "a text that may be of anything"),
		})
	})
	require.Equal(t, map[string]sum{
		"gen_ai.server.request.duration text_completion m DEADLINE_EXCEEDED": {1, 3},
		"gen_ai.client.token.usage text_completion m input":                  {1, 7},
		"gen_ai.client.token.usage text_completion m output":                 {1, 2},
	}, got)
}
