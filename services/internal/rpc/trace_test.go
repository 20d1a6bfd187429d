package rpc_test

import (
	"bytes"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
)

// A caller's span, recorded and not recorded.
const (
	callersTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan   = "00f067aa0ba902b7"
	recorded      = "00-" + callersTrace + "-" + callersSpan + "-01"
	notRecorded   = "00-" + callersTrace + "-" + callersSpan + "-00"
	tracedService = "millrace.v1.InferenceService/"
)

// traced runs a server whose spans and log lines are kept. They are complete after stop.
func traced(t *testing.T, guards ...grpc.StreamServerInterceptor) (conn *grpc.ClientConn, spans *tracetest.SpanRecorder, lines *bytes.Buffer, stop func()) {
	t.Helper()
	rpctest.NoLeaks(t)
	spans, lines = tracetest.NewSpanRecorder(), &bytes.Buffer{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: lines})
	server := rpc.NewServer(rpc.ServerConfig{Domain: rpc.WorkerDomain, Tracer: provider.Tracer(rpc.TraceScope), Interceptors: guards}, logger)
	pb.RegisterInferenceServiceServer(server, echo{})
	lis := rpctest.Listener(t)
	stop = rpctest.Serve(t, server, lis)
	return rpctest.Dial(t, lis), spans, lines, stop
}

// attributes returns a span's attributes by name.
func attributes(s sdktrace.ReadOnlySpan) map[string]string {
	out := map[string]string{}
	for _, a := range s.Attributes() {
		out[string(a.Key)] = a.Value.String()
	}
	return out
}

func TestCallSpanIsAChildOfItsCallers(t *testing.T) {
	conn, spans, lines, stop := traced(t)
	ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", recorded, rpc.RequestIDKey, "mine")
	_, err := pb.NewInferenceServiceClient(conn).Tokenize(ctx, text("a secret"))
	require.NoError(t, err)
	stop()
	all := spans.Ended()
	require.Len(t, all, 1)
	require.Equal(t, tracedService+"Tokenize", all[0].Name())
	require.Equal(t, trace.SpanKindServer, all[0].SpanKind())
	require.Equal(t, callersTrace, all[0].SpanContext().TraceID().String())
	require.Equal(t, callersSpan, all[0].Parent().SpanID().String())
	require.Equal(t, map[string]string{
		"rpc.system.name": "grpc", "rpc.method": tracedService + "Tokenize", "rpc.response.status_code": "OK", "millrace.request.id": "mine",
	}, attributes(all[0]))
	require.Equal(t, otelcodes.Unset, all[0].Status().Code)
	require.Contains(t, lines.String(), "trace_id="+callersTrace, "the line of the call leads to its trace")
}

func TestSpanStatusOfServerAndCallerErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		text   string
		status otelcodes.Code
		code   string
		reason string
	}{
		"a panic":          {"panic", otelcodes.Error, "INTERNAL", "PANIC"},
		"a full server":    {"full", otelcodes.Unset, "RESOURCE_EXHAUSTED", "FULL"},
		"one that is well": {"fine", otelcodes.Unset, "OK", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, spans, _, stop := traced(t)
			// the span records how it ended
			_, _ = pb.NewInferenceServiceClient(conn).Tokenize(within(t), text(tc.text))
			stop()
			require.Len(t, spans.Ended(), 1)
			is := attributes(spans.Ended()[0])
			require.Equal(t, tc.status, spans.Ended()[0].Status().Code)
			require.Equal(t, tc.code, is["rpc.response.status_code"])
			require.Equal(t, tc.reason, is["millrace.reason"])
			require.NotContains(t, spans.Ended()[0].Status().Description, "failed inside", "no message is told")
		})
	}
}

func TestUnrecordedCallLeavesNothing(t *testing.T) {
	conn, spans, lines, stop := traced(t)
	ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", notRecorded)
	_, err := pb.NewInferenceServiceClient(conn).Tokenize(ctx, text("a"))
	require.NoError(t, err)
	stop()
	require.Empty(t, spans.Ended())
	require.Contains(t, lines.String(), "finished call")
	require.NotContains(t, lines.String(), "trace_id")
}

func TestStandardServicesHaveNoSpans(t *testing.T) {
	// Neither have unknown methods.
	conn, spans, _, stop := traced(t)
	_, err := healthpb.NewHealthClient(conn).Check(within(t), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Error(t, conn.Invoke(within(t), "/a.caller/MadeThisUp", text("a"), &pb.TokenizeResponse{}))
	stop()
	require.Empty(t, spans.Ended())
}

func TestRefusedCallsHaveNoSpans(t *testing.T) {
	conn, spans, lines, stop := traced(t, func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
		return rpc.Error{Code: codes.Unauthenticated, Domain: rpc.WorkerDomain, Reason: "NO", Message: "no"}.Err()
	})
	ctx := metadata.AppendToOutgoingContext(within(t), "traceparent", recorded)
	_, err := pb.NewInferenceServiceClient(conn).Tokenize(ctx, text("a"))
	require.Equal(t, codes.Unauthenticated, status.Code(err))
	stop()
	require.Empty(t, spans.Started())
	require.Contains(t, lines.String(), "reason=NO")
}

func TestOutgoingCallsCarryTheSpan(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	ctx, span := tracer.Start(t.Context(), "outer")
	md, _ := metadata.FromOutgoingContext(rpc.WithRequestID(ctx, "mine"))
	require.Equal(t, []string{"mine"}, md.Get(rpc.RequestIDKey))
	require.Len(t, md.Get("traceparent"), 1)
	require.Contains(t, md.Get("traceparent")[0], span.SpanContext().SpanID().String())

	stale := metadata.Pairs("traceparent", recorded, "tracestate", "of=another")
	rpc.PutTrace(ctx, stale)
	require.Contains(t, stale.Get("traceparent")[0], span.SpanContext().TraceID().String())
	require.Empty(t, stale.Get("tracestate"))
	rpc.PutTrace(t.Context(), stale)
	require.NotEmpty(t, stale.Get("traceparent"), "no span changes nothing")
}

func TestStartSpanWithoutAParent(t *testing.T) {
	ctx, span := rpc.StartSpan(t.Context(), "inner")
	require.Nil(t, span)
	require.Equal(t, t.Context(), ctx)
	rpc.EndSpan(span, nil)

	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	outer, end := tracer.Start(t.Context(), "outer")
	_, span = rpc.StartSpan(outer, "inner", trace.WithAttributes(attribute.Int("n", 1)))
	rpc.EndSpan(span, rpc.Error{Code: codes.Internal, Domain: rpc.WorkerDomain, Reason: "WHY", Message: "a text"}.Err())
	end.End()
	inner := spans.Ended()[0]
	require.Equal(t, "inner", inner.Name())
	require.Equal(t, end.SpanContext().SpanID(), inner.Parent().SpanID())
	require.Equal(t, sdktrace.Status{Code: otelcodes.Error, Description: "WHY"}, inner.Status())
	require.Equal(t, map[string]string{"n": "1", "error.type": "INTERNAL", "millrace.reason": "WHY"}, attributes(inner))
}
