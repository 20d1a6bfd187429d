package server

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/generate"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
)

// tracedWorker starts a worker with recorders of its spans and metrics. They are complete when it
// has stopped.
func tracedWorker(t *testing.T, o sim.Options) (w *worker, spans *tracetest.SpanRecorder, reader *sdkmetric.ManualReader) {
	t.Helper()
	spans, reader = tracetest.NewSpanRecorder(), sdkmetric.NewManualReader()
	generations, err := telemetry.NewGenerations(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	w = startWith(t, simDevice(t, o), func(c *setup) {
		c.server.Generations = generations
		c.rpc.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer(rpc.TraceScope)
	}, "stories")
	return w, spans, reader
}

// partsOf returns the span of the one Generate call, and the spans within it in the order in which
// they were made.
func partsOf(t *testing.T, spans *tracetest.SpanRecorder) (call sdktrace.ReadOnlySpan, within []sdktrace.ReadOnlySpan) {
	t.Helper()
	for _, s := range spans.Ended() {
		if strings.HasSuffix(s.Name(), "/Generate") {
			require.Nil(t, call, "one call")
			call = s
		}
	}
	require.NotNil(t, call)
	for _, s := range spans.Ended() {
		if s.Parent().SpanID() == call.SpanContext().SpanID() {
			within = append(within, s)
		}
	}
	return call, within
}

// facts returns the attributes of a span as texts.
func facts(s sdktrace.ReadOnlySpan) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes() {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

// requireWhole checks that the spans are contiguous and cover the call from its arrival to its end.
func requireWhole(t *testing.T, call sdktrace.ReadOnlySpan, within []sdktrace.ReadOnlySpan, names ...string) {
	t.Helper()
	require.Len(t, within, len(names))
	for i, s := range within {
		require.Equal(t, names[i], s.Name())
		require.False(t, s.EndTime().Before(s.StartTime()), s.Name())
		if i > 0 {
			require.Equal(t, within[i-1].EndTime(), s.StartTime(), s.Name())
		}
	}
	require.False(t, within[0].StartTime().Before(call.StartTime()))
	require.False(t, within[len(within)-1].EndTime().After(call.EndTime()))
}

func TestPhasesOfAGenerationAreSpans(t *testing.T) {
	w, spans, reader := tracedWorker(t, sim.Options{})
	out := w.generate(t.Context(), t, prompted("Once upon a secret time", 20))
	require.NoError(t, out.err)
	w.stop()
	call, within := partsOf(t, spans)
	requireWhole(t, call, within, "prepare", "queue", "prefill", "decode")
	is := facts(call)
	require.Equal(t, "stories", is["gen_ai.request.model"])
	require.Equal(t, "millrace", is["gen_ai.provider.name"])
	require.Equal(t, "text_completion", is["gen_ai.operation.name"])
	require.Equal(t, "20", is["gen_ai.request.max_tokens"])
	require.Equal(t, "20", is["gen_ai.usage.output_tokens"])
	require.Equal(t, `["length"]`, is["gen_ai.response.finish_reasons"])
	require.Equal(t, "w1", is["millrace.worker.id"])
	require.Equal(t, "20", is["millrace.steps"], "one for the prompt and its first token, one for each of the others")
	require.Equal(t, "0", is["millrace.preemptions"])
	require.Equal(t, out.started.GetRequestId(), is["millrace.request.id"])
	for _, s := range append(within, call) {
		for key, text := range facts(s) {
			require.NotContains(t, text, "secret", key)
		}
		require.Equal(t, otelcodes.Unset, s.Status().Code)
	}
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	require.Len(t, all.ScopeMetrics, 1)
	require.Len(t, all.ScopeMetrics[0].Metrics, 4)
}

func TestCancelledGenerationEndsInItsPhase(t *testing.T) {
	w, spans, _ := tracedWorker(t, sim.Options{StepTime: 100 * time.Millisecond}) // hundreds of tokens outlast the test
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := w.infer.Generate(ctx, prompted("Once upon a time", 400))
	require.NoError(t, err)
	in, err := stream.Recv()
	for err == nil && in.GetTokens() == nil {
		in, err = stream.Recv()
	}
	require.NoError(t, err)
	cancel()
	for err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, codes.Canceled, status.Code(err))
	w.stop()
	call, within := partsOf(t, spans)
	requireWhole(t, call, within, "prepare", "queue", "prefill", "decode")
	require.Equal(t, otelcodes.Error, within[3].Status().Code)
	require.Equal(t, otelcodes.Unset, within[2].Status().Code)
	require.Equal(t, otelcodes.Unset, call.Status().Code, "a caller who leaves is no fault of a server")
}

func TestRefusedRequestIsASpanWithoutPhases(t *testing.T) {
	w, spans, reader := tracedWorker(t, sim.Options{})
	in := prompted("Once", 5)
	in.Model = "nobody's"
	require.Error(t, w.generate(t.Context(), t, in).err)
	w.stop()
	call, within := partsOf(t, spans)
	require.Empty(t, within)
	require.Equal(t, "BAD_MODEL_NAME", facts(call)["millrace.reason"])
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	require.Empty(t, all.ScopeMetrics, "a caller makes no series")
}

func TestSpanIsAChildOfTheCallersSpan(t *testing.T) {
	// The log line of the call names the trace.
	w, spans, _ := tracedWorker(t, sim.Options{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	require.NoError(t, w.generate(ctx, t, prompted("Once", 2)).err)
	w.stop()
	call, _ := partsOf(t, spans)
	require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", call.SpanContext().TraceID().String())
	require.Equal(t, "00f067aa0ba902b7", call.Parent().SpanID().String())
}

func TestPhasesEndWithTheLastOneReached(t *testing.T) {
	at := time.Unix(100, 0)
	submitted, now := at.Add(time.Second), at.Add(10*time.Second)
	queue, prefill := batch.Timings{Queue: 2 * time.Second}, batch.Timings{Queue: 2 * time.Second, Prefill: 3 * time.Second}
	for name, tc := range map[string]struct {
		of   record
		want []phase
	}{
		"before it was prepared": {record{arrived: at}, []phase{{prepareSpan, now}}},
		"before it had a slot":   {record{arrived: at, submitted: submitted}, []phase{{prepareSpan, submitted}, {queueSpan, now}}},
		"before its first token": {record{arrived: at, submitted: submitted, totals: generate.Totals{Timings: queue}},
			[]phase{{prepareSpan, submitted}, {queueSpan, submitted.Add(2 * time.Second)}, {prefillSpan, now}}},
		"after its first token": {record{arrived: at, submitted: submitted, totals: generate.Totals{Generated: 1, Timings: prefill}},
			[]phase{{prepareSpan, submitted}, {queueSpan, submitted.Add(2 * time.Second)}, {prefillSpan, submitted.Add(5 * time.Second)}, {decodeSpan, now}}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, tc.of.phases(now)) })
	}
}
