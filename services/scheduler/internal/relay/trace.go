package relay

import (
	"context"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
)

// Names of the spans within the span of a call.
const (
	queueSpan   = "queue"   // from the moment that a call needs a worker until it has a lease
	attemptSpan = "attempt" // on one worker
)

// causes are the values of the attribute millrace.attempt.cause.
var causes = map[Continuation]string{Retried: "retried", Resumed: "resumed", Inexact: "inexact", Moved: "moved"}

// callSpans are the spans of one call. If the call's span is not recorded, none is made within it,
// and tracing costs nothing. The zero value is that of such a call.
type callSpans struct {
	call     trace.Span // nil: not recorded
	attempt  trace.Span // of the last attempt; nil: none yet
	attempts int
	sent     int64 // tokens that the caller had before the last attempt
}

// beginQueue begins the span of a search for a worker.
func (c *call) beginQueue() trace.Span {
	_, span := rpc.StartSpan(c.ctx, queueSpan)
	return span
}

// endQueue ends the span of a search with its result.
func endQueue(span trace.Span, lease *admission.Lease, err error) {
	if span != nil && lease != nil {
		span.SetAttributes(telemetry.WorkerID.String(lease.WorkerID), telemetry.ExpectedCached.Int64(lease.Cached))
	}
	rpc.EndSpan(span, err)
}

// beginAttempt begins the span of an attempt and returns the context of the worker's call. The span
// links to that of the attempt before, which it continues.
func (c *call) beginAttempt(lease *admission.Lease) context.Context {
	s := &c.spans
	if s.call == nil {
		return c.ctx
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
	if s.attempt != nil {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: s.attempt.SpanContext()}))
	}
	s.attempts++
	ctx, span := rpc.StartSpan(c.ctx, attemptSpan, options...)
	span.SetAttributes(
		semconv.RPCSystemNameGRPC, semconv.RPCMethod(c.method[1:]), semconv.GenAIRequestModel(c.route.Model),
		telemetry.WorkerID.String(lease.WorkerID), telemetry.WorkerClass.String(lease.ClassID), telemetry.Attempt.Int(s.attempts),
	)
	if s.attempts > 1 {
		span.SetAttributes(telemetry.AttemptCause.String(causes[c.cause]))
	}
	s.attempt, s.sent = span, c.delivered()
	return ctx
}

// endAttempt ends the span of an attempt.
func (c *call) endAttempt(o *outcome) {
	if c.spans.call == nil {
		return
	}
	c.spans.attempt.SetAttributes(telemetry.SentTokens.Int64(c.delivered() - c.spans.sent))
	err := o.err
	if o.moved != nil { // the relay itself ended the attempt, so its status is not an error
		err = nil
	}
	rpc.EndSpan(c.spans.attempt, err)
}

// report reports the result of a generation that had a lease: to the call's span, to balancers and
// to the metrics.
func (c *call) report(err error) {
	if c.log == nil {
		return
	}
	firstToken := time.Duration(0)
	if !c.firstToken.IsZero() {
		firstToken = c.firstToken.Sub(c.arrived)
	}
	if span := c.spans.call; span != nil {
		u := telemetry.Usage{
			Input: int(c.log.PromptTokens()), Cached: int(c.log.CachedTokens()), Output: int(c.log.Tokens()), FirstToken: firstToken,
		}
		span.SetAttributes(u.Attributes()...)
		span.SetAttributes(telemetry.Attempts.Int(c.spans.attempts), telemetry.WorkerID.String(c.failover.lastWorker))
	}
	c.options.Reports.End(c.ctx, int64(c.log.PromptTokens()), c.log.Tokens(), err)
	c.options.Generations.Record(c.ctx, telemetry.Generation{
		Model: c.route.Model, Chat: c.chat, Input: int64(c.log.PromptTokens()), Output: c.log.Tokens(),
		Continuations: max(c.route.Sequences, 1), FirstToken: firstToken, Took: time.Since(c.arrived), Err: err,
	})
}
