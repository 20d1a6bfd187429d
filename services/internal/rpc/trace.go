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

// TraceScope is the instrumentation scope of spans that programs of ours make.
const TraceScope = "github.com/millrace/millrace"

// Attributes of spans that no convention names.
const (
	RequestIDAttribute = attribute.Key("millrace.request.id")
	ReasonAttribute    = attribute.Key("millrace.reason")
)

// traceContext is how a span is told to the next process: W3C's traceparent and tracestate. The call's baggage is not read.
var traceContext propagation.TraceContext

// incoming is the metadata of a call that was received, as the propagator reads it.
type incoming struct{ ctx context.Context }

func (c incoming) Get(key string) string {
	if values := metadata.ValueFromIncomingContext(c.ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (incoming) Set(string, string) {} // what came is not changed
func (incoming) Keys() []string     { return traceContext.Fields() }

// outgoing is the metadata of a call that is to be made, as the propagator writes it.
type outgoing struct{ md metadata.MD }

func (outgoing) Get(string) string       { return "" } // nothing of it is read
func (c outgoing) Set(key, value string) { c.md.Set(key, value) }
func (outgoing) Keys() []string          { return traceContext.Fields() }

// PutTrace puts the span that ctx is in into the metadata of an outgoing call, recorded or not, in the place of any other; without one
// it does nothing.
func PutTrace(ctx context.Context, md metadata.MD) {
	if trace.SpanContextFromContext(ctx).IsValid() {
		md.Delete("tracestate")
		traceContext.Inject(ctx, outgoing{md})
	}
}

// Span is the span that ctx is in, if it is recorded, else nil: whoever has none does nothing.
func Span(ctx context.Context) trace.Span {
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		return s
	}
	return nil
}

// StartSpan begins a span within a recorded one of ctx; without such a one it gives ctx as it is and nil. What records the one
// records the other, at whatever rate.
func StartSpan(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	within := Span(ctx)
	if within == nil {
		return ctx, nil
	}
	return within.TracerProvider().Tracer(TraceScope).Start(ctx, name, options...)
}

// EndSpan ends a span, unless it is nil, with the status of an error. It tells code and reason and no message, which may have something
// of a request.
func EndSpan(s trace.Span, err error, options ...trace.SpanEndOption) {
	if s == nil {
		return
	}
	if err != nil {
		is := CodeName(status.Code(err))
		s.SetAttributes(semconv.ErrorTypeKey.String(is))
		if why := Reason(err); why != "" {
			s.SetAttributes(ReasonAttribute.String(why))
			is = why
		}
		s.SetStatus(otelcodes.Error, is)
	}
	s.End(options...)
}

// CodeName is a status code as the contract of gRPC writes it: DEADLINE_EXCEEDED.
func CodeName(c codes.Code) string { return code.Code(c).String() }

// callersOwn are the codes that say nothing against a server: as spans of servers have it, these end well.
var callersOwn = map[codes.Code]bool{
	codes.Canceled: true, codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.PermissionDenied: true,
	codes.ResourceExhausted: true, codes.FailedPrecondition: true, codes.Aborted: true, codes.OutOfRange: true,
	codes.Unauthenticated: true,
}

// trace is the innermost interceptor. It makes a span of a call that was let in, within its caller's: who is kept out fills no queue of
// spans. The line of a call whose span is recorded names its trace.
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
				err = Fault{Code: codes.Internal, Domain: s.cfg.Domain, Reason: reason.Panic}.Err()
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
	is := status.Code(err)
	span.SetAttributes(semconv.RPCResponseStatusCode(CodeName(is)), RequestIDAttribute.String(RequestID(ctx)))
	if why := Reason(err); why != "" {
		span.SetAttributes(ReasonAttribute.String(why))
	}
	if callersOwn[is] {
		err = nil
	}
	EndSpan(span, err)
}
