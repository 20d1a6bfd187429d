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

// Names of the spans within that of a Generate call, in their order.
const (
	prepareSpan = "prepare" // until the step loop has its tokens
	queueSpan   = "queue"   // until it has its first slot in the batch
	prefillSpan = "prefill" // until its first token
	decodeSpan  = "decode"  // until its end
)

// record collects what load reports, spans and metrics need of one generation. It reports once,
// when the generation has ended, so that a token costs the same with spans and without. One
// goroutine uses it at once.
type record struct {
	server    *Server
	ctx       context.Context // of the call and its span
	span      trace.Span      // nil: not recorded
	model     string          // empty: the call had no model
	chat      bool
	arrived   time.Time
	submitted time.Time // zero: it never reached the step loop
	prompt    int       // tokens of its prompt
	outputs   int       // continuations
	resumed   bool      // it resumes a stream that another worker started
	totals    generate.Totals
	reasons   []string // why its outputs ended
}

// startRecord starts the record of a call that has arrived.
func (s *Server) startRecord(ctx context.Context, in *pb.GenerateRequest, arrived time.Time) record {
	r := record{server: s, ctx: ctx, span: rpc.Span(ctx), arrived: arrived, chat: in.GetChat() != nil}
	if r.span != nil {
		r.span.SetAttributes(telemetry.RequestAttributes(in)...)
		r.span.SetAttributes(telemetry.WorkerID.String(s.cfg.WorkerID))
	}
	return r
}

// submit records that the step loop gets the request now.
func (r *record) submit(q generate.Request) {
	r.prompt, r.outputs, r.resumed, r.submitted = len(q.Prompt), q.Sequences, q.Resumed(), time.Now()
}

// reasonNames are the names of finish reasons in the semantic conventions.
var reasonNames = map[batch.Reason]string{batch.Stop: "stop", batch.Length: "length"}

// finished records that an output ended by itself.
func (r *record) finished(reason batch.Reason) {
	r.server.cfg.Observer.Finished(r.model, reason)
	if r.span != nil {
		r.reasons = append(r.reasons, reasonNames[reason])
	}
}

// end reports the generation, with the error that its caller gets.
func (r *record) end(err error) {
	r.server.reports.End(r.ctx, int64(r.prompt), int64(r.totals.Generated), err)
	if r.model == "" || r.span == nil && r.server.cfg.Generations == nil {
		return
	}
	now := time.Now()
	g := telemetry.Generation{
		Model: r.model, Chat: r.chat, Input: int64(r.prompt), Output: int64(r.totals.Generated), Continuations: int64(r.outputs),
		FirstToken: r.firstToken(), Took: now.Sub(r.arrived), Err: err,
	}
	if r.span != nil {
		r.trace(now, g)
	}
	if r.resumed { // another worker sent its first token
		g.FirstToken = 0
	}
	r.server.cfg.Generations.Record(r.ctx, g)
}

// firstToken returns the time from the call's arrival to its first token, and 0 if it had none.
func (r *record) firstToken() time.Duration {
	if r.totals.Generated == 0 {
		return 0
	}
	timings := &r.totals.Timings
	return r.submitted.Sub(r.arrived) + timings.Queue + timings.Prefill
}

// trace makes the spans of its phases. The last one has its error.
func (r *record) trace(end time.Time, g telemetry.Generation) {
	u := telemetry.Usage{
		Input: int(g.Input), Cached: r.totals.Cached, Output: int(g.Output), FirstToken: g.FirstToken, Reasons: r.reasons,
	}
	timings := &r.totals.Timings
	r.span.SetAttributes(u.Attributes()...)
	r.span.SetAttributes(telemetry.ResumedTokens.Int(r.totals.Resumed), telemetry.Steps.Int(timings.Steps),
		telemetry.StepTime.Float64(timings.StepTime.Seconds()), telemetry.Preemptions.Int(timings.Preemptions))
	began := r.arrived
	phases := r.phases(end)
	for i, p := range phases {
		_, span := rpc.StartSpan(r.ctx, p.name, trace.WithTimestamp(began))
		began = p.ended
		if last := i == len(phases)-1; last {
			rpc.EndSpan(span, g.Err, trace.WithTimestamp(p.ended))
		} else {
			rpc.EndSpan(span, nil, trace.WithTimestamp(p.ended))
		}
	}
}

// phase is a part of a generation's time. It begins when the one before it ends.
type phase struct {
	name  string
	ended time.Time
}

// phases returns the phases that the generation reached. The last one ends with it.
func (r *record) phases(end time.Time) []phase {
	timings := &r.totals.Timings
	all := []phase{
		{prepareSpan, r.submitted}, {queueSpan, r.submitted.Add(timings.Queue)}, {prefillSpan, r.submitted.Add(timings.Queue + timings.Prefill)},
		{name: decodeSpan},
	}
	reached := len(all)
	switch {
	case r.submitted.IsZero():
		reached = 1
	case timings.Queue == 0:
		reached = 2
	case r.totals.Generated == 0:
		reached = 3
	}
	all[reached-1].ended = end
	return all[:reached]
}
