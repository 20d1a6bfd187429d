package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/millrace/millrace/services/internal/ratelog"
	"github.com/millrace/millrace/services/internal/rpc"
)

// traceContext reads W3C's traceparent and tracestate. Baggage is not read.
var traceContext propagation.TraceContext

// startSpan starts the span of a request as a child of its client's, if the client sent one.
func (s *Server) startSpan(r *http.Request, route Route) (context.Context, trace.Span) {
	ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	return s.cfg.Tracer.Start(ctx, route.Pattern, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(ratelog.Clip(r.Method)), semconv.HTTPRoute(pathOf(route.Pattern))))
}

// endSpan ends the span of a request. Requests that fail because of the client are not errors of a
// server.
func endSpan(span trace.Span, x *Exchange, f *Failure) {
	span.SetAttributes(semconv.HTTPResponseStatusCode(x.out.status), rpc.RequestIDAttribute.String(x.ID))
	if f == nil {
		span.End()
		return
	}
	span.SetAttributes(rpc.ReasonAttribute.String(f.Reason))
	if f.Status < http.StatusInternalServerError {
		span.End()
		return
	}
	rpc.EndSpan(span, f)
}

// log writes the line of a request that has ended. The lines of requests that fail because of the
// client are limited for each reason.
func (s *Server) log(x *Exchange, route string, f *Failure, err error, took time.Duration) {
	fields := append([]any{
		"request_id", x.ID, "method", ratelog.Clip(x.Request.Method), "route", route, "status", x.out.status, "peer", x.Request.RemoteAddr,
		"time_ms", float64(took.Microseconds()) / 1000,
	}, x.fields...)
	level := hclog.Info
	if f != nil {
		switch {
		case f.Code == codes.Unavailable:
			level = hclog.Warn
		case f.Status >= http.StatusInternalServerError && f.Code != codes.DeadlineExceeded:
			level = hclog.Error
		default:
			suppressed, ok := s.lines.Allow(f.Reason)
			if !ok {
				return
			}
			if suppressed > 0 {
				fields = append(fields, "refused_without_a_line", suppressed)
			}
		}
		fields = append(fields, "reason", f.Reason, "error", ratelog.Clip(err.Error()))
	}
	if span := trace.SpanContextFromContext(x.ctx); span.IsSampled() {
		fields = append(fields, "trace_id", span.TraceID().String())
	}
	s.logger.Log(level, "request ended", fields...)
}
