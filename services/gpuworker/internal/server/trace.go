package server

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/gpuworker/batch"
	"github.com/millrace/millrace/gpuworker/generate"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
)

// Names of spans within that of a Generate call, in their order.
const (
	prepareSpan = "prepare" // until its tokens are known and the step loop has them
	queueSpan   = "queue"   // until it has its first place in the batch
	prefillSpan = "prefill" // until its first token
	decodeSpan  = "decode"  // until its end
)

// Measure gives the server who measures generations by the conventions. Call it before Register.
func (s *Server) Measure(g *telemetry.Generations) { s.generations = g }

// telling is what is told of a generation when it has ended, to balancers, to its spans and to measures: while it is under way nobody is told anything,
// so that a token costs the same with spans and without. One goroutine uses it at once.
type telling struct {
	server    *Server
	ctx       context.Context // of the call, and of its span
	span      trace.Span      // nil: it is not recorded
	model     string          // empty: none was found
	chat      bool
	arrived   time.Time
	submitted time.Time // zero: it was not
	prompt    int       // tokens of its prompt
	outputs   int       // continuations
	resumed   bool      // whether it goes on with what another worker had begun
	totals    generate.Totals
	reasons   []string
}

// begin is for a call that has just come.
func (s *Server) begin(ctx context.Context, in *pb.GenerateRequest, arrived time.Time) telling {
	t := telling{server: s, ctx: ctx, span: rpc.Span(ctx), arrived: arrived, chat: in.GetChat() != nil}
	if t.span != nil {
		t.span.SetAttributes(telemetry.OfRequest(in)...)
		t.span.SetAttributes(telemetry.WorkerID.String(s.identity.WorkerID))
	}
	return t
}

// prepared: the step loop is given the request now.
func (t *telling) prepared(r generate.Request) {
	t.prompt, t.outputs, t.resumed, t.submitted = len(r.Prompt), r.Sequences, r.Resumed(), time.Now()
}

// reasonNames are what the conventions call ends of a continuation.
var reasonNames = map[batch.Reason]string{batch.Stop: "stop", batch.Length: "length"}

// finished: one of its continuations has ended well.
func (t *telling) finished(r batch.Reason) {
	t.server.observer.Finished(t.model, r)
	if t.span != nil {
		t.reasons = append(t.reasons, reasonNames[r])
	}
}

// end: it has ended, with what its caller sees.
func (t *telling) end(err error) {
	t.server.reports.End(t.ctx, int64(t.prompt), int64(t.totals.Generated), err)
	if t.model == "" || t.span == nil && t.server.generations == nil {
		return
	}
	now := time.Now()
	g := telemetry.Generation{
		Model: t.model, Chat: t.chat, Input: int64(t.prompt), Output: int64(t.totals.Generated), Continuations: int64(t.outputs),
		FirstToken: t.firstToken(), Took: now.Sub(t.arrived), Err: err,
	}
	if t.span != nil {
		t.trace(now, g)
	}
	if t.resumed { // its first token was another worker's
		g.FirstToken = 0
	}
	t.server.generations.Record(t.ctx, g)
}

// firstToken is when the first one came here, counted from the call's arrival; 0: none did.
func (t *telling) firstToken() time.Duration {
	if t.totals.Generated == 0 {
		return 0
	}
	is := &t.totals.Timings
	return t.submitted.Sub(t.arrived) + is.Queue + is.Prefill
}

// trace makes the spans of what it went through, the last of which has its error.
func (t *telling) trace(now time.Time, g telemetry.Generation) {
	u := telemetry.Usage{
		Input: int(g.Input), Cached: t.totals.Cached, Output: int(g.Output), FirstToken: g.FirstToken, Reasons: t.reasons,
	}
	is := &t.totals.Timings
	t.span.SetAttributes(u.Attributes()...)
	t.span.SetAttributes(telemetry.ResumedTokens.Int(t.totals.Resumed), telemetry.Steps.Int(is.Steps),
		telemetry.StepTime.Float64(is.StepTime.Seconds()), telemetry.Preemptions.Int(is.Preemptions))
	began := t.arrived
	phases := t.phases(now)
	for i, p := range phases {
		_, span := rpc.StartSpan(t.ctx, p.name, trace.WithTimestamp(began))
		began = p.ended
		if last := i == len(phases)-1; last {
			rpc.EndSpan(span, g.Err, trace.WithTimestamp(p.ended))
		} else {
			rpc.EndSpan(span, nil, trace.WithTimestamp(p.ended))
		}
	}
}

// phase is a part of a generation's time, from the end of the one before.
type phase struct {
	name  string
	ended time.Time
}

// phases are those that it came to; the last one ends with it.
func (t *telling) phases(now time.Time) []phase {
	is := &t.totals.Timings
	all := []phase{
		{prepareSpan, t.submitted}, {queueSpan, t.submitted.Add(is.Queue)}, {prefillSpan, t.submitted.Add(is.Queue + is.Prefill)},
		{name: decodeSpan},
	}
	reached := len(all)
	switch {
	case t.submitted.IsZero():
		reached = 1
	case is.Queue == 0:
		reached = 2
	case t.totals.Generated == 0:
		reached = 3
	}
	all[reached-1].ended = now
	return all[:reached]
}
