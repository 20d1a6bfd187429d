package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// maxLost is how many attempts in a row may be lost without a new token. The limit exists because
// the request itself may be what crashes workers: without it, one such request would take down the
// fleet, one worker after another.
const maxLost = 3

// call is one call from its request to its end, over all its attempts. One goroutine runs it.
type call struct {
	*Relay
	ctx    context.Context
	down   grpc.ServerStream // to the caller
	method string
	route  route.Request
	prompt int64 // Request.Prompt

	requestContext int64 // context_length of the request; 0: unset
	minContext     int64 // workers with a shorter context have refused the call; 0: none has

	// log records the events that a generation's caller was sent. It is nil for other methods,
	// which use the next three fields instead.
	log          *calllog.Log
	body         []byte                      // the request
	tokens       func(response []byte) int64 // Request.Tokens
	lostAttempts int

	streaming  bool        // whether the headers have left, with the first frame
	arrived    time.Time   // when the call arrived
	firstToken time.Time   // when its first token arrived; zero: none has
	trailer    metadata.MD // of the last attempt

	chat          bool // whether the request is a conversation
	spans         callSpans
	failover      failover
	meter         *auth.Meter
	promptMetered bool // whether the prompt's tokens were added to meter
	live          liveCall
	observer      CallObserver
	cause         Continuation // why the current attempt was made, for observer
	causePending  bool         // whether observer gets cause with the attempt's first frame
}

// newCall returns a call. It copies from the request what later attempts need.
func newCall(r *Relay, down grpc.ServerStream, method string, request Request, raw []byte) *call {
	c := &call{
		Relay: r, ctx: down.Context(), down: rpc.RawStream(down), method: method, route: request.Route, prompt: request.Prompt,
		arrived: time.Now(), meter: auth.MeterOf(down.Context()), observer: nopObserver{},
	}
	c.spans.call = rpc.Span(c.ctx)
	if request.Generation != nil {
		c.live = liveCall{id: rpc.RequestID(c.ctx), model: request.Route.Model, arrived: c.arrived}
		c.requestContext = int64(request.Generation.GetContextLength())
		c.log, c.chat = calllog.New(raw, request.Generation, c.arrived), request.Generation.GetChat() != nil
		if c.spans.call != nil {
			c.spans.call.SetAttributes(telemetry.RequestAttributes(request.Generation)...)
		}
	} else {
		c.body, c.tokens = append([]byte(nil), raw...), request.Tokens
	}
	return c
}

// run makes attempts until one of them ends the call, or until no worker is found for the next one.
func (c *call) run() error {
	if c.log != nil {
		defer c.Relay.live.add(&c.live)()
	}
	span := c.beginQueue()
	lease, err := c.placer.Place(c.ctx, c.route)
	endQueue(span, lease, err)
	if err != nil {
		return rpcstatus.Of(err)
	}
	if c.log != nil {
		c.observer = c.options.Observer.Placed(c.route.Model, time.Since(c.arrived))
	}
	inexact := false
	attempts, resumes := 0, 0
	for {
		if attempts++; c.resumable() {
			resumes++
		}
		o := c.attempt(lease, inexact)
		if o.scope.ends() {
			err = o.err
			break
		}
		if lease, inexact = o.moved, false; lease != nil {
			c.cause, c.causePending = Moved, true
			continue
		}
		span = c.beginQueue()
		lease, inexact, err = c.next(&o)
		endQueue(span, lease, err)
		if lease == nil {
			break
		}
	}
	rpc.Annotate(c.ctx, "worker", c.failover.lastWorker)
	if c.log != nil {
		rpc.Annotate(c.ctx, "tokens", c.log.Tokens())
		c.meterPrompt()
	}
	c.meterStopped(err)
	if attempts > 1 {
		rpc.Annotate(c.ctx, "attempts", attempts)
		rpc.Annotate(c.ctx, "resumes", resumes)
	}
	if c.trailer != nil {
		c.down.SetTrailer(c.trailer)
	}
	c.observer.Ended(status.Code(err), time.Since(c.arrived))
	c.report(err)
	return err
}

// meterPrompt charges the caller's quota for the prompt and for the tokens that the caller resumes
// with. It charges them once, however many attempts compute them.
func (c *call) meterPrompt() {
	if !c.promptMetered && c.log.Started() {
		c.promptMetered = true
		c.meter.Add(int64(c.log.PromptTokens()) + c.log.ResumedTokens())
	}
}

// meterStopped charges the caller's quota for a call that ended with err because the caller went away
// or its deadline passed. A response would state the tokens; without one the estimate counts, because
// a worker has computed an unknown part. Otherwise short deadlines would compute for free.
func (c *call) meterStopped(err error) {
	if err != nil && c.tokens != nil && (c.ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded) {
		c.meter.Add(c.route.Tokens)
	}
}

// resumable reports whether the caller has the beginning of a stream, so that the next attempt must
// resume it.
func (c *call) resumable() bool { return c.log != nil && c.log.Started() }

// next leases a worker for the next attempt, after one that did not end the call. If it returns no
// lease, the error is the call's status.
func (c *call) next(o *outcome) (lease *admission.Lease, inexact bool, err error) {
	if o.scope == scopeEither && c.countLost() >= maxLost {
		return nil, false, c.finalError(o, "as many attempts in a row brought no token")
	}
	c.failover.recordFailure(o.err)
	if c.resumable() {
		lease, inexact, err = c.resume(o)
		switch {
		case lease != nil && inexact:
			c.cause, c.causePending = Inexact, true
		case lease != nil:
			c.cause, c.causePending = Resumed, true
		}
		return lease, inexact, err
	}
	if c.streaming && c.log == nil {
		return nil, false, o.err
	}
	lease, err = c.retryFromStart(o)
	switch {
	// An attempt whose worker computed nothing is retried for free: it cannot feed a retry storm.
	case err == nil && (o.unsent() || o.scope == scopeContext || c.retries.withdraw()):
		c.cause, c.causePending = Retried, true
		return lease, false, nil
	case err == nil:
		lease.End()
	case c.ctx.Err() != nil:
		return nil, false, c.contextError()
	}
	// A worker with a longer context exists, but has failed the call before or is not ready. The
	// caller must get that status, which can be retried, and not that its request is too long.
	if o.scope == scopeContext && (o.contextNotHeld || route.Unready(err)) {
		return nil, false, rpcstatus.Of(err)
	}
	return nil, false, o.err // a worker's own status explains more than the lack of another worker
}

// remaining returns the routing request for the rest of the call, of which open outputs have not
// ended.
func (c *call) remaining(open int) route.Request {
	r := c.route
	r.Arrived = c.arrived.UnixNano()
	if before := r.Sequences; before > 0 {
		r.Sequences = min(int64(open), before)
		r.Tokens = r.Prompt + (r.Tokens-r.Prompt)/before*r.Sequences
	}
	return r
}

// countLost counts a lost attempt and returns how many in a row were lost without a new token.
func (c *call) countLost() int {
	if c.log != nil {
		return c.log.AttemptLost()
	}
	c.lostAttempts++
	return c.lostAttempts
}

// finalError returns the status of a stream that cannot continue: the worker's own status, or that
// the worker was lost and why no other one continued the stream.
func (c *call) finalError(o *outcome, why string) error {
	c.addUsage()
	if !o.lost || !c.resumable() {
		return o.err
	}
	c.observer.Continued(Lost)
	return rpcstatus.Unresumed(c.failover.lastWorker, c.log.Tokens(), status.Convert(o.err).Message(), why)
}

// contextError returns the status of a call whose context has ended.
func (c *call) contextError() error {
	c.addUsage()
	return rpcstatus.Of(context.Cause(c.ctx))
}

// addUsage adds the usage so far to the trailers, because no worker is left that would report it.
func (c *call) addUsage() {
	if c.log == nil || c.trailer.Get(rpc.UsageTrailer) != nil {
		return
	}
	if usage := c.log.Usage(); usage != nil {
		c.trailer = metadata.Join(c.trailer, metadata.Pairs(rpc.UsageTrailer, string(usage)))
	}
}

// message returns the request of the next attempt.
func (c *call) message(inexact bool) mem.BufferSlice {
	if c.log == nil {
		return mem.BufferSlice{mem.SliceBuffer(c.body)}
	}
	var elapsed calllog.Elapsed
	if c.resumable() {
		switch now := time.Now(); {
		case c.firstToken.IsZero():
			elapsed.BeforeToken = now.Sub(c.arrived)
		default:
			elapsed.BeforeToken, elapsed.SinceToken = c.firstToken.Sub(c.arrived), now.Sub(c.firstToken)
		}
	}
	original, resume := c.log.NextRequest(inexact, elapsed)
	if resume == nil {
		return mem.BufferSlice{mem.SliceBuffer(original)}
	}
	return mem.BufferSlice{mem.SliceBuffer(original), mem.SliceBuffer(resume)}
}
