package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// maxLost is how many attempts in a row may be lost without having brought a token: it may be the request that workers do not
// survive.
const maxLost = 3

// call is one call from its request to its end, over as many attempts as it takes. One goroutine runs it.
type call struct {
	*Relay
	ctx    context.Context
	down   grpc.ServerStream
	method string
	route  route.Request
	prompt int64
	stated uint32 // context_length of the request; 0: unset
	longer int64  // workers with a shorter context have refused the call; 0: none

	// log is nil for methods that are no generation; then body is the request, and tokens is Request.Tokens.
	log    *calllog.Log
	body   []byte
	tokens func(response []byte) int64

	begun   bool        // whether a frame went down
	lost    int         // attempts that were lost, of a call without log
	arrived time.Time   // the call
	first   time.Time   // the first token; zero: none yet
	trailer metadata.MD // of the last attempt

	chat     bool // whether the request is a conversation
	traced   traced
	failover failover
	meter    *auth.Meter
	paid     bool // meter knows of the prompt
	shown    shown
	seen     CallObserver
	goesOn   Again // how the attempt under way goes on with the call, for seen
	tells    bool  // whether seen is told so when it is answered
}

// newCall keeps of a request what further attempts need.
func newCall(r *Relay, down grpc.ServerStream, method string, in Request, raw []byte) *call {
	c := &call{
		Relay: r, ctx: down.Context(), down: rpc.Bare(down), method: method, route: in.Route, prompt: in.Prompt, arrived: time.Now(),
		meter: auth.MeterOf(down.Context()), seen: unseen{},
	}
	c.traced.call = rpc.Span(c.ctx)
	if in.Generation != nil {
		c.shown = shown{id: rpc.RequestID(c.ctx), model: in.Route.Model, arrived: c.arrived}
		c.stated = in.Generation.GetContextLength()
		c.log, c.chat = calllog.New(raw, in.Generation, c.arrived), in.Generation.GetChat() != nil
		if c.traced.call != nil {
			c.traced.call.SetAttributes(telemetry.OfRequest(in.Generation)...)
		}
	} else {
		c.body, c.tokens = append([]byte(nil), raw...), in.Tokens
	}
	return c
}

// run gives the call to workers until it has ended.
func (c *call) run() error {
	if c.log != nil {
		defer c.running.enter(&c.shown)()
	}
	span := c.beginQueue()
	lease, err := c.places.Place(c.ctx, c.route)
	endQueue(span, lease, err)
	if err != nil {
		return fault.Status(err)
	}
	if c.log != nil {
		c.seen = c.options.Observer.Placed(c.route.Model, time.Since(c.arrived))
	}
	inexact := false
	attempts, resumes := 0, 0
	for {
		if attempts++; c.resumable() {
			resumes++
		}
		end := c.try(lease, inexact)
		if end.of.ends() {
			err = end.err
			break
		}
		if lease, inexact = end.moved, false; lease != nil {
			c.goesOn, c.tells = Moved, true
			continue
		}
		span = c.beginQueue()
		lease, inexact, err = c.next(&end)
		endQueue(span, lease, err)
		if lease == nil {
			break
		}
	}
	rpc.Annotate(c.ctx, "worker", c.failover.last)
	if c.log != nil {
		rpc.Annotate(c.ctx, "tokens", c.log.Tokens())
		c.payPrompt()
	}
	if attempts > 1 {
		rpc.Annotate(c.ctx, "attempts", attempts)
		rpc.Annotate(c.ctx, "resumes", resumes)
	}
	if c.trailer != nil {
		c.down.SetTrailer(c.trailer)
	}
	c.seen.Ended(status.Code(err), time.Since(c.arrived))
	c.conclude(err)
	return err
}

// payPrompt tells the meter of the prompt, and of what the caller resumes with, once, however often it is computed.
func (c *call) payPrompt() {
	if !c.paid && c.log.Started() {
		c.paid = true
		c.meter.Add(int64(c.log.PromptTokens()) + c.log.Brought())
	}
}

// resumable reports whether the caller has the beginning of a stream, which another worker goes on with.
func (c *call) resumable() bool { return c.log != nil && c.log.Started() }

// next finds the worker of the next attempt, after one that could not end the call. Without one, the error is the call's end.
func (c *call) next(end *ending) (lease *admission.Lease, inexact bool, err error) {
	if end.of == either && c.count() >= maxLost {
		return nil, false, c.over(end, "as many attempts in a row brought no token")
	}
	c.failover.failed(end.err)
	if c.resumable() {
		lease, inexact, err = c.resume(end)
		switch {
		case lease != nil && inexact:
			c.goesOn, c.tells = Inexact, true
		case lease != nil:
			c.goesOn, c.tells = Resumed, true
		}
		return lease, inexact, err
	}
	if c.begun && c.log == nil {
		return nil, false, end.err
	}
	lease, err = c.again(end)
	switch {
	case err == nil && (end.unsent() || end.of == short || c.retries.take()): // a call that no worker has begun adds to no retry storm
		c.goesOn, c.tells = Retried, true
		return lease, false, nil
	case err == nil:
		lease.End()
	case c.ctx.Err() != nil:
		return nil, false, c.ended()
	}
	if end.of == short && (end.given || route.Unready(err)) { // the workers that have the context are there, and failed the call before
		return nil, false, fault.Status(err)
	}
	return nil, false, end.err // what the worker that was there said is nearer the truth than why nobody else is
}

// rest is what routing needs of the rest of the call, of which so many outputs have not ended.
func (c *call) rest(open int) route.Request {
	r := c.route
	r.Arrived = c.arrived.UnixNano()
	if before := r.Sequences; before > 0 {
		r.Sequences = min(int64(open), before)
		r.Tokens = r.Prompt + (r.Tokens-r.Prompt)/before*r.Sequences
	}
	return r
}

// count counts a lost attempt and is how many there were in a row.
func (c *call) count() int {
	if c.log != nil {
		return c.log.Lost()
	}
	c.lost++
	return c.lost
}

// over is the end of a stream that cannot go on: a worker's own word, or that it was lost and why nobody took its place.
func (c *call) over(end *ending, why string) error {
	c.usage()
	if !end.lost || !c.resumable() {
		return end.err
	}
	c.seen.Again(Lost)
	return fault.Unresumed(c.failover.last, c.log.Tokens(), status.Convert(end.err).Message(), why)
}

// ended is the status of a call whose context has ended.
func (c *call) ended() error {
	c.usage()
	return fault.Status(context.Cause(c.ctx))
}

// usage puts what was used into the trailers, where no worker is left to tell it.
func (c *call) usage() {
	if c.log == nil || c.trailer.Get(rpc.UsageTrailer) != nil {
		return
	}
	if usage := c.log.Usage(); usage != nil {
		c.trailer = metadata.Join(c.trailer, metadata.Pairs(rpc.UsageTrailer, string(usage)))
	}
}

// message is the request of the next attempt.
func (c *call) message(inexact bool) mem.BufferSlice {
	if c.log == nil {
		return mem.BufferSlice{mem.SliceBuffer(c.body)}
	}
	spent := calllog.Spent{}
	if c.resumable() {
		switch now := time.Now(); {
		case c.first.IsZero():
			spent.Before = now.Sub(c.arrived)
		default:
			spent.Before, spent.Behind = c.first.Sub(c.arrived), now.Sub(c.first)
		}
	}
	whole, rest := c.log.Next(inexact, spent)
	if rest == nil {
		return mem.BufferSlice{mem.SliceBuffer(whole)}
	}
	return mem.BufferSlice{mem.SliceBuffer(whole), mem.SliceBuffer(rest)}
}
