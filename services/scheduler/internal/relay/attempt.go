package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/calllog"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// upstream describes every relayed call: one request, any number of responses. Unary methods have
// that shape on the wire, too (docs/decisions/006).
var upstream = &grpc.StreamDesc{ServerStreams: true}

// How an attempt may end other than with the worker's own status.
var (
	// errTruncated: the worker ended a generation with OK before every output had finished.
	errTruncated = errors.New("the stream ended before the generation had finished")
	// errUnsent: the request never left this process.
	errUnsent = errors.New("the request did not reach the worker")
	// errCallerGone: the caller's stream is closed.
	errCallerGone = errors.New("the caller is gone")
	// errUndelivered: this server refuses to send the frame; attempt.sendError says why.
	errUndelivered = errors.New("the caller's frame was not sent")
	// errMoved: the worker drains, and a slot on a peer is leased for the stream.
	errMoved = errors.New("the stream was handed over")
)

// outcome is how an attempt ended.
type outcome struct {
	err   error // the status that the caller would get
	scope retryScope
	lost  bool             // whether the worker sent no status of its own, so that err is the relay's
	moved *admission.Lease // the slot on a peer, if the stream was handed over
	// contextNotHeld says that the worker's own context is shorter than the one that was added to the
	// request. Its refusal says nothing about workers that have the longer one.
	contextNotHeld bool
}

// workerGone reports whether the worker disappeared, or announced that it stops.
func (o *outcome) workerGone() bool {
	switch rpc.Reason(o.err) {
	case reason.WorkerStopping, reason.WorkerDraining, reason.Cancelled:
		return true
	}
	return o.lost
}

// unsent reports whether the worker never received the request.
func (o *outcome) unsent() bool { return o.lost && o.scope == scopeWorker }

// attempt is one stream to one worker.
type attempt struct {
	*call
	lease        *admission.Lease
	answered     bool  // whether a frame arrived
	open         int   // outputs that have not ended, as handover has it
	addedContext int64 // context_length that was added to the request; 0: none
	handover     handover
	sendError    error // of errUndelivered
}

// attempt runs one attempt to its end and releases the lease.
func (c *call) attempt(lease *admission.Lease, inexact bool) outcome {
	defer lease.End()
	a := &attempt{call: c, lease: lease, addedContext: c.contextFor(lease)}
	c.failover.begin(lease.WorkerID)
	c.live.worker.Store(&lease.WorkerID)
	defer c.live.worker.Store(nil)
	c.trailer = nil
	up, cancel := context.WithCancelCause(Outgoing(c.beginAttempt(lease)))
	defer cancel(nil)
	lost := lease.Link.Lost()
	defer context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })()
	if c.log != nil {
		a.open = c.log.OpenOutputs()
		a.handover.setOpen(a.open)
		a.handover.setContext(c.contextNeeded(lease))
		defer lease.Link.OnDrain(func() { a.handOver(up, cancel) })()
	}
	err := a.stream(up, inexact)
	if c.stripTenant(err) {
		err = a.stream(up, inexact)
	}
	o := a.outcome(lost, err)
	if moved := a.handover.close(); moved != nil {
		if o.scope.ends() {
			moved.End()
		} else {
			o.moved = moved
		}
	}
	c.endAttempt(&o)
	return o
}

// outcome interprets the end of the worker's stream.
//
// A generation is complete once every output has its `finished`, whatever status follows. Before
// that, the stream is lost if it ends without a status of a worker or of this scheduler: OK, a
// status of gRPC itself and the status of a proxy all mean that the worker did not decide to end
// it.
func (a *attempt) outcome(lost context.Context, err error) outcome {
	switch {
	case errors.Is(err, errUndelivered):
		return outcome{err: a.sendError}
	case a.log != nil && a.log.Complete(), a.log == nil && err == nil:
		return outcome{}
	case errors.Is(err, errCallerGone):
		return outcome{err: err}
	case rpc.Domain(err) == rpc.WorkerDomain || rpc.Domain(err) == rpc.SchedulerDomain:
		scope := a.scope(err)
		if !scope.ends() && a.ctx.Err() != nil {
			return outcome{err: a.contextError()}
		}
		if scope == scopeContext {
			a.contextRefused(err)
		}
		if rpcstatus.RefusesScheduler(err) {
			err = rpcstatus.Lost(a.lease.WorkerID, a.delivered(), err)
		}
		return outcome{err: err, scope: scope, contextNotHeld: scope == scopeContext && a.minContext <= a.addedContext}
	case a.ctx.Err() != nil:
		return outcome{err: a.contextError()}
	case a.log == nil && lost.Err() == nil && scopeOfCode(status.Code(err)) == scopeRequest:
		return outcome{err: err} // gRPC's own status, for example for a method that this worker does not have
	}
	scope := scopeEither
	if errors.Is(err, errUnsent) {
		scope = scopeWorker
	}
	if lost.Err() != nil {
		err = context.Cause(lost)
	}
	return outcome{err: rpcstatus.Lost(a.lease.WorkerID, a.delivered(), err), scope: scope, lost: true}
}

// scope returns the scope of the worker's own status.
func (a *attempt) scope(err error) retryScope {
	scope := scopeOf(err, a.resumable() && !a.answered)
	switch {
	case a.addedContext > 0 && rpc.Reason(err) == reason.UnknownField:
		return scopeContext // an earlier version does not have context_length, so its own context applies
	case scope != scopeContext:
		return scope
	case a.answered || a.lease.Context == 0 || a.requestContext > 0 && rpc.Reason(err) != reason.ContextTooShort:
		return scopeRequest // the request's own context decided, or the worker's is not known
	}
	return scope
}

// delivered returns how many tokens the caller has.
func (c *call) delivered() int64 {
	if c.log == nil {
		return 0
	}
	return c.log.Tokens()
}

// stream sends the request to the worker and forwards the answer. The error is the worker's status,
// the transport's, or one of the errors above.
func (a *attempt) stream(ctx context.Context, inexact bool) error {
	out := rpc.Frame{Data: a.message(inexact)}
	if a.addedContext > 0 {
		out.Data = append(out.Data, mem.SliceBuffer(calllog.AppendContext(nil, a.addedContext)))
	}
	up, err := a.lease.Link.Conn().NewStream(ctx, upstream, a.method, a.codec)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	// SendMsg returns io.EOF if the stream has ended; RecvMsg then returns its status.
	if err := up.SendMsg(&out); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := up.CloseSend(); err != nil {
		return err
	}
	var frame rpc.Frame
	for {
		if err := up.RecvMsg(&frame); err != nil {
			a.trailer = Returned(up.Trailer())
			switch {
			case !errors.Is(err, io.EOF):
				return err
			case a.log != nil:
				return errTruncated
			}
			return nil
		}
		a.lease.Link.Heard()
		if err := a.forward(&frame, up); err != nil {
			frame.Free()
			return err
		}
	}
}

// forward records one frame and sends it to the caller. It returns after the frame was sent, and
// only then is the next one received, because the log counts a recorded frame as delivered.
func (a *attempt) forward(frame *rpc.Frame, up grpc.ClientStream) error {
	isFirstToken := false
	if a.log != nil {
		v, err := a.record(frame)
		switch {
		case err != nil:
			return err
		case v.Tokens > 0:
			isFirstToken = a.firstToken.IsZero()
			a.onTokens(v.Tokens)
		case v.Drop:
			a.onAnswer()
			frame.Free()
			return nil
		}
		if v.Replacement != nil {
			frame.Free()
			frame.Data = mem.BufferSlice{mem.SliceBuffer(v.Replacement)}
		}
	}
	if a.log != nil && a.log.OpenOutputs() != a.open {
		a.open = a.log.OpenOutputs()
		a.handover.setOpen(a.open)
	}
	a.onAnswer()
	if a.tokens != nil {
		response := rpc.Flatten(frame.Data)
		a.meter.Add(a.tokens(response.ReadOnlyData()))
		response.Free()
	}
	if !a.streaming {
		if err := a.sendHeaders(up); err != nil {
			return err
		}
	}
	if a.log != nil && a.log.Complete() {
		// Release the slot before the last frame leaves. A caller that sends its next request on
		// receiving it then finds the slot free, instead of pushing another worker over its limit.
		a.lease.Vacate()
	}
	switch err := a.down.SendMsg(frame); {
	case rpc.Reason(err) != "":
		a.sendError = err
		return errUndelivered
	case err != nil:
		return fmt.Errorf("%w: %w", errCallerGone, err)
	}
	if isFirstToken {
		// Yield, because the rest of a short answer may be here already. Without it, that rest would
		// be handled before the transport's goroutine writes the first token.
		rpc.YieldToTransport()
	}
	return nil
}

// record passes a frame to the log.
func (a *attempt) record(frame *rpc.Frame) (calllog.Verdict, error) {
	if len(frame.Data) == 1 {
		return a.log.Record(frame.Data[0].ReadOnlyData())
	}
	whole := frame.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return a.log.Record(whole.ReadOnlyData())
}

// onAnswer handles the first frame of the attempt.
func (a *attempt) onAnswer() {
	if a.answered {
		return
	}
	a.answered = true
	if a.causePending {
		a.causePending = false
		a.observer.Continued(a.cause)
	}
	a.retries.refund()
	a.lease.Progress(a.prompt + a.delivered())
	if a.resumable() {
		a.handover.setStream(a.log.Class(), a.log.Digest(), a.log.Length())
		if digest := a.log.Digest(); digest != "" { // workers of earlier versions do not send it
			a.lease.Link.ObserveDigest(a.route.Model, digest)
		}
	}
}

// onTokens handles a frame that adds tokens.
func (a *attempt) onTokens(n int64) {
	a.onAnswer()
	a.failover.succeed()
	a.lease.Progress(n)
	a.meterPrompt()
	a.meter.Add(n)
	a.call.live.tokens.Add(n)
	a.observer.Tokens(n)
	if a.firstToken.IsZero() {
		a.firstToken = time.Now()
		a.observer.FirstToken(a.firstToken.Sub(a.arrived))
	}
}

// sendHeaders forwards the worker's headers, which leave with the first frame. The request of other
// methods than Generate is released here, because it is not sent again after that frame.
func (a *attempt) sendHeaders(up grpc.ClientStream) error {
	a.streaming = true
	if a.log == nil {
		a.body = nil
		rpc.ReleaseRequest(a.ctx)
	}
	header, err := up.Header()
	if err != nil {
		return err
	}
	if header = Returned(header); header != nil {
		return a.down.SetHeader(header)
	}
	return nil
}
