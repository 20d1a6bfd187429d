package relay_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// tracedRig is a rig that records spans, and the traceparent of each request that workers received.
type tracedRig struct {
	*rig
	spans *tracetest.SpanRecorder

	mu struct {
		sync.Mutex
		parents []string // in order of arrival
	}
}

// newTracedRig starts workers. The one that is chosen first answers first, others answer whole.
func newTracedRig(t *testing.T, first workertest.Answer, ids ...string) *tracedRig {
	t.Helper()
	r := &tracedRig{spans: tracetest.NewSpanRecorder()}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r.spans)).Tracer(rpc.TraceScope)
	answers := map[string]workertest.Answer{}
	for _, id := range ids {
		answers[id] = workertest.Answer{}
	}
	r.rig = newRig(t, relay.Options{}, answers, func(c *rpc.ServerConfig) { c.Tracer = tracer })
	for id, w := range r.workers {
		w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			a := workertest.Whole(id)
			if r.asked(stream) == 1 {
				a = first
				a.Worker = id
			}
			return a.Generate(in, stream)
		}
	}
	return r
}

// asked records the traceparent of a request and returns how many there were.
func (r *tracedRig) asked(stream grpc.ServerStream) int {
	md, _ := metadata.FromIncomingContext(stream.Context())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.parents = append(r.mu.parents, strings.Join(md.Get("traceparent"), " "))
	return len(r.mu.parents)
}

// named returns the spans with a name in order of their start, once the span of the call has ended.
func (r *tracedRig) named(name string) (all []sdktrace.ReadOnlySpan) {
	r.Helper()
	const call = "millrace.v1.InferenceService/Generate"
	require.Eventually(r, func() bool { // it ends after its caller has seen the status
		for _, s := range r.spans.Ended() {
			if s.Name() == call {
				return true
			}
		}
		return false
	}, hang, time.Millisecond)
	for _, s := range r.spans.Started() {
		if s.Name() == name || name == "call" && s.Name() == call {
			all = append(all, s)
		}
	}
	return all
}

// says returns the attributes of a span as strings.
func says(s sdktrace.ReadOnlySpan) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes() {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

func TestEachAttemptHasASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := workertest.Answer{Events: 3, Err: ways["with the connection's error"]} // `started` and two tokens
		r := newTracedRig(t, broken, "w1", "w2")
		_, err := r.generate(ask(5))
		require.NoError(t, err)

		call := r.named("call")[0]
		require.Equal(t, otelcodes.Unset, call.Status().Code)
		attributes := says(call)
		require.Equal(t, "m", attributes["gen_ai.request.model"])
		require.Equal(t, "text_completion", attributes["gen_ai.operation.name"])
		require.Equal(t, "5", attributes["gen_ai.request.max_tokens"])
		require.Equal(t, "6", attributes["gen_ai.usage.input_tokens"])
		require.Equal(t, "5", attributes["gen_ai.usage.output_tokens"])
		require.Equal(t, "2", attributes["millrace.attempts"])
		for _, s := range r.spans.Ended() {
			require.NotContains(t, says(s), "once", "no text of a prompt")
			for _, text := range says(s) {
				require.NotEqual(t, "once", text, "no text of a prompt")
			}
		}

		attempts, queues := r.named("attempt"), r.named("queue")
		require.Len(t, attempts, 2)
		require.Len(t, queues, 2, "one search for each attempt")
		for _, s := range append(attempts, queues...) {
			require.Equal(t, call.SpanContext().SpanID(), s.Parent().SpanID())
			require.Equal(t, call.SpanContext().TraceID(), s.SpanContext().TraceID())
		}
		first, second := says(attempts[0]), says(attempts[1])
		require.Equal(t, trace.SpanKindClient, attempts[0].SpanKind())
		require.Equal(t, sdktrace.Status{Code: otelcodes.Error, Description: "WORKER_LOST"}, attempts[0].Status())
		require.Equal(t, "2", first["millrace.tokens"])
		require.NotContains(t, first, "millrace.attempt.cause")
		require.Empty(t, attempts[0].Links())
		require.Equal(t, otelcodes.Unset, attempts[1].Status().Code)
		require.Equal(t, "3", second["millrace.tokens"])
		require.Equal(t, "resumed", second["millrace.attempt.cause"])
		require.NotEqual(t, first["millrace.worker.id"], second["millrace.worker.id"])
		require.Len(t, attempts[1].Links(), 1)
		require.Equal(t, attempts[0].SpanContext().SpanID(), attempts[1].Links()[0].SpanContext.SpanID())
		require.Equal(t, second["millrace.worker.id"], says(queues[1])["millrace.worker.id"])
		for i, a := range attempts {
			span := a.SpanContext()
			require.Equal(t, "00-"+span.TraceID().String()+"-"+span.SpanID().String()+"-01", r.mu.parents[i], "the worker's spans are its children")
		}
	})
}

func TestRefusedCallHasAQueueSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTracedRig(t, workertest.Whole(""), "w1")
		in := ask(1)
		in.Model = "unknown"
		_, err := r.generate(in)
		require.Error(t, err)
		require.Equal(t, "unknown", says(r.named("call")[0])["gen_ai.request.model"])
		require.Len(t, r.named("queue"), 1)
		require.Equal(t, otelcodes.Error, r.named("queue")[0].Status().Code)
		require.Empty(t, r.named("attempt"))
	})
}

func TestUnsampledTraceIsForwarded(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	synctest.Test(t, func(t *testing.T) {
		r := newTracedRig(t, workertest.Whole(""), "w1")
		stream, err := r.inference.Generate(metadata.AppendToOutgoingContext(r.patient(), "traceparent", parent), ask(2))
		require.NoError(t, err)
		_, err = all(stream)
		require.NoError(t, err)
		require.Empty(t, r.spans.Started())
		require.Len(t, r.mu.parents, 1)
		require.Equal(t, parent[:len("00-")+32], r.mu.parents[0][:len("00-")+32], "the trace is the caller's")
		require.True(t, strings.HasSuffix(r.mu.parents[0], "-00"), "and still not recorded")
	})
}

func TestMovedAttemptEndsWithoutError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTracedRig(t, slow(), "w1", "w2")
		stream, got := r.begin(ask(200), 4)
		r.drain(got[0].GetStarted().GetWorkerId(), true)
		_, err := all(stream)
		require.NoError(t, err)
		r.named("call")
		attempts := r.named("attempt")
		require.Len(t, attempts, 2)
		require.Equal(t, otelcodes.Unset, attempts[0].Status().Code)
		require.Equal(t, "moved", says(attempts[1])["millrace.attempt.cause"])
	})
}
