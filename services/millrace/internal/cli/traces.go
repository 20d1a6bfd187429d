package cli

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/internal/version"
	"github.com/millrace/millrace/services/millrace/internal/failure"
)

// traces make each call of a connection a trace that the server goes on with, where the environment has traces sent; otherwise they are
// nothing. Metrics of a short command are not sent.
func (a *app) traces() ([]grpc.DialOption, error) {
	s := a.Config.Telemetry
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
	}
	if !s.Traces {
		return nil, nil
	}
	if a.sent == nil {
		logger := hclog.New(&hclog.LoggerOptions{Name: program, Level: hclog.Warn, Output: a.Err})
		s.Metrics = false
		var err error
		a.sent, err = telemetry.Open(context.Background(), s, telemetry.Identity{Program: program, Version: version.String()}, logger)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", failure.ErrUsage, err)
		}
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(a.sent.Provider), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}, nil
}

// endTraces sends the remaining spans.
func (a *app) endTraces() {
	if a.sent != nil {
		a.sent.End()
	}
}

// traceStarted keeps the span of a call, if it is recorded, and sets the request's attributes. It is there once the first event has come.
func (s *statistics) traceStarted(ctx context.Context, in *pb.GenerateRequest) {
	if s.span = rpc.Span(ctx); s.span != nil {
		s.span.SetAttributes(telemetry.RequestAttributes(in)...)
		s.span.SetAttributes(telemetry.WorkerID.String(s.started.GetWorkerId()), rpc.RequestIDAttribute.String(s.started.GetRequestId()))
	}
}

// traceFinished sets the result of the call so far on the span: it ends before its caller sees the end of the stream.
func (s *statistics) traceFinished() {
	if s.span == nil {
		return
	}
	u := telemetry.Usage{
		Input: int(s.started.GetPromptTokens()), Cached: int(s.started.GetCachedTokens()), Output: s.tokens, FirstToken: s.toFirst,
	}
	for _, f := range s.finished {
		u.Reasons = append(u.Reasons, finishReasons[f.GetReason()])
	}
	s.span.SetAttributes(u.Attributes()...)
}

// finishReasons are the conventions' names for the ends of a continuation.
var finishReasons = map[pb.FinishReason]string{
	pb.FinishReason_FINISH_REASON_STOP: "stop", pb.FinishReason_FINISH_REASON_LENGTH: "length",
}
