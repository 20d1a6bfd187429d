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

// Names of spans within that of a call.
const (
	queueSpan   = "queue"   // from a call's need of a worker until it has one
	attemptSpan = "attempt" // on one worker
)

// causes are what a span calls the ways to go on.
var causes = map[Again]string{Retried: "retried", Resumed: "resumed", Inexact: "inexact", Moved: "moved"}

// traced is the spans of one call. The zero value is of one whose span is not recorded: then there are none within it, and nothing of
// this costs anything.
type traced struct {
	call     trace.Span // nil: it is not recorded
	attempt  trace.Span // the last one; nil: none yet
	attempts int
	sent     int64 // tokens that the caller had before it
}

// beginQueue begins the span of a search for a worker.
func (c *call) beginQueue() trace.Span {
	_, span := rpc.StartSpan(c.ctx, queueSpan)
	return span
}

// endQueue ends it with what was found.
func endQueue(span trace.Span, lease *admission.Lease, err error) {
	if span != nil && lease != nil {
		span.SetAttributes(telemetry.WorkerID.String(lease.WorkerID), telemetry.ExpectedCached.Int64(lease.Cached))
	}
	rpc.EndSpan(span, err)
}

// beginAttempt begins the span of an attempt. Its context is what the worker is asked in; the span of one that goes on with another's is
// linked with that one.
func (c *call) beginAttempt(lease *admission.Lease) context.Context {
	t := &c.traced
	if t.call == nil {
		return c.ctx
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
	if t.attempt != nil {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: t.attempt.SpanContext()}))
	}
	t.attempts++
	ctx, span := rpc.StartSpan(c.ctx, attemptSpan, options...)
	span.SetAttributes(
		semconv.RPCSystemNameGRPC, semconv.RPCMethod(c.method[1:]), semconv.GenAIRequestModel(c.route.Model),
		telemetry.WorkerID.String(lease.WorkerID), telemetry.WorkerClass.String(lease.ClassID), telemetry.Attempt.Int(t.attempts),
	)
	if t.attempts > 1 {
		span.SetAttributes(telemetry.AttemptCause.String(causes[c.goesOn]))
	}
	t.attempt, t.sent = span, c.delivered()
	return ctx
}

// endAttempt ends it.
func (c *call) endAttempt(end *ending) {
	if c.traced.call == nil {
		return
	}
	c.traced.attempt.SetAttributes(telemetry.SentTokens.Int64(c.delivered() - c.traced.sent))
	err := end.err
	if end.moved != nil { // it was ended here, for a place elsewhere
		err = nil
	}
	rpc.EndSpan(c.traced.attempt, err)
}

// conclude tells the call's span, balancers, and who measures generations, what came of one that had a place.
func (c *call) conclude(err error) {
	if c.log == nil {
		return
	}
	firstToken := time.Duration(0)
	if !c.first.IsZero() {
		firstToken = c.first.Sub(c.arrived)
	}
	if span := c.traced.call; span != nil {
		u := telemetry.Usage{
			Input: int(c.log.PromptTokens()), Cached: int(c.log.CachedTokens()), Output: int(c.log.Tokens()), FirstToken: firstToken,
		}
		span.SetAttributes(u.Attributes()...)
		span.SetAttributes(telemetry.Attempts.Int(c.traced.attempts), telemetry.WorkerID.String(c.failover.last))
	}
	c.options.Reports.End(c.ctx, int64(c.log.PromptTokens()), c.log.Tokens(), err)
	c.options.Generations.Record(c.ctx, telemetry.Generation{
		Model: c.route.Model, Chat: c.chat, Input: int64(c.log.PromptTokens()), Output: c.log.Tokens(),
		Continuations: max(c.route.Sequences, 1), FirstToken: firstToken, Took: time.Since(c.arrived), Err: err,
	})
}
