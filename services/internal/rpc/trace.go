package rpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
)

// TraceScope is the instrumentation scope of the project's spans.
const TraceScope = "github.com/millrace/millrace"

// Span attributes without a convention.
const (
	RequestIDAttribute = attribute.Key("millrace.request.id")
	ReasonAttribute    = attribute.Key("millrace.reason")
)

// traceContext propagates spans in W3C's traceparent and tracestate. Baggage is not read.
var traceContext propagation.TraceContext

// incoming carries the metadata of a received call to the propagator.
type incoming struct{ ctx context.Context }

func (c incoming) Get(key string) string {
	if values := metadata.ValueFromIncomingContext(c.ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (incoming) Set(string, string) {} // received metadata do not change
func (incoming) Keys() []string     { return traceContext.Fields() }

// outgoing carries the metadata of an outgoing call to the propagator.
type outgoing struct{ md metadata.MD }

func (outgoing) Get(string) string       { return "" } // not read
func (c outgoing) Set(key, value string) { c.md.Set(key, value) }
func (outgoing) Keys() []string          { return traceContext.Fields() }

// PutTrace writes the span of ctx into the metadata of an outgoing call, recorded or not, and
// replaces any other. It does nothing if ctx has no span.
func PutTrace(ctx context.Context, md metadata.MD) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		md.Delete("tracestate")
		traceContext.Inject(ctx, outgoing{md})
	}
}

// Span returns the span of ctx if it is recorded, else nil.
func Span(ctx context.Context) trace.Span {
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		return s
	}
	return nil
}

// StartSpan starts a child of the recorded span of ctx. It returns ctx and nil if none exists. A
// child is recorded if its parent is, so the sampling rate does not matter here.
func StartSpan(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	parent := Span(ctx)
	if parent == nil {
		return ctx, nil
	}
	return parent.TracerProvider().Tracer(TraceScope).Start(ctx, name, options...)
}

// EndSpan ends a span with the status of an error. s may be nil. It records code and reason, but
// not the message, which may quote a request.
func EndSpan(s trace.Span, err error, options ...trace.SpanEndOption) {
	if s == nil {
		return
	}
	if err != nil {
		description := CodeName(status.Code(err))
		s.SetAttributes(semconv.ErrorTypeKey.String(description))
		if why := Reason(err); why != "" {
			s.SetAttributes(ReasonAttribute.String(why))
			description = why
		}
		s.SetStatus(otelcodes.Error, description)
	}
	s.End(options...)
}

// CodeName returns a status code as gRPC's specification writes it, for example DEADLINE_EXCEEDED.
func CodeName(c codes.Code) string { return code.Code(c).String() }

// callerErrors are the codes that are not errors of a server by the conventions for server spans.
var callerErrors = map[codes.Code]bool{
	codes.Canceled: true, codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.PermissionDenied: true,
	codes.ResourceExhausted: true, codes.FailedPrecondition: true, codes.Aborted: true, codes.OutOfRange: true,
	codes.Unauthenticated: true,
}

// trace is the innermost interceptor. It starts a span for an admitted call as a child of its
// caller's. Refused calls get none, so that they cannot fill the queue of spans. The log line of a
// recorded call names its trace.
func (s *Server) trace(impl any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	ctx := traceContext.Extract(stream.Context(), incoming{stream.Context()})
	name := strings.TrimPrefix(info.FullMethod, "/")
	ctx, span := s.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(semconv.RPCSystemNameGRPC, semconv.RPCMethod(name)))
	if span.IsRecording() {
		Annotate(ctx, "trace_id", span.SpanContext().TraceID().String())
		returned := false
		defer func() {
			if !returned { // it panics
				err = Error{Code: codes.Internal, Domain: s.cfg.Domain, Reason: reason.Panic}.Err()
			}
			endCall(ctx, span, err)
		}()
		err = next(impl, &serverStream{ServerStream: stream, ctx: ctx})
		returned = true
		return err
	}
	return next(impl, &serverStream{ServerStream: stream, ctx: ctx})
}

// endCall ends the span of a call.
func endCall(ctx context.Context, span trace.Span, err error) {
	if _, ok := status.FromError(err); !ok {
		err = status.FromContextError(err).Err()
	}
	code := status.Code(err)
	span.SetAttributes(semconv.RPCResponseStatusCode(CodeName(code)), RequestIDAttribute.String(RequestID(ctx)))
	if why := Reason(err); why != "" {
		span.SetAttributes(ReasonAttribute.String(why))
	}
	if callerErrors[code] {
		err = nil
	}
	EndSpan(span, err)
}
