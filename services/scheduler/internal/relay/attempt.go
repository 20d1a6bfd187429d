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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// upstream is the shape of every relayed call: one request, any number of responses.
var upstream = &grpc.StreamDesc{ServerStreams: true}

// How an attempt may end beside the worker's own status.
var (
	// errShort: the worker ended a generation well without having finished it.
	errShort = errors.New("the stream ended before the generation had finished")
	// errUnsent: the request never left.
	errUnsent = errors.New("the worker could not be asked")
	// errGone: the caller takes no more frames.
	errGone = errors.New("the caller is gone")
	// errUndelivered: this server does not deliver the frame, and its status says why.
	errUndelivered = errors.New("the caller's frame was not sent")
	// errMoved: the worker drains, and another has a place for the stream.
	errMoved = errors.New("the stream was handed over")
)

// ending is how an attempt ended.
type ending struct {
	err   error // as the caller would get it
	of    blame
	lost  bool // whether err is this program's, of a worker that went without a word
	moved *admission.Lease
	given bool // whether the worker found its context shorter than the one that the request was given here
}

// attempt is one stream of one worker.
type attempt struct {
	*call
	lease    *admission.Lease
	answered bool  // whether a frame came
	open     int   // outputs that have not ended, as handover knows
	context  int64 // context_length that the request was given here; 0: none
	handover handover

	undelivered error // of errUndelivered
}

// try runs one attempt to its end and gives the lease back.
func (c *call) try(lease *admission.Lease, inexact bool) ending {
	defer lease.End()
	a := &attempt{call: c, lease: lease, context: c.contextFor(lease)}
	c.failover.begin(lease.WorkerID)
	c.shown.worker.Store(&lease.WorkerID)
	defer c.shown.worker.Store(nil)
	c.trailer = nil
	up, cancel := context.WithCancelCause(Outgoing(c.beginAttempt(lease)))
	defer cancel(nil)
	lost := lease.Link.Lost()
	defer context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })()
	if c.log != nil {
		a.open = c.log.Open()
		a.handover.leaves(a.open)
		a.handover.holds(c.needs(lease))
		defer lease.Link.OnDrain(func() { a.handOver(up, cancel) })()
	}
	err := a.stream(up, inexact)
	if c.withoutTenant(err) {
		err = a.stream(up, inexact)
	}
	end := a.end(lost, err)
	if moved := a.handover.close(); moved != nil {
		if end.of.ends() {
			moved.End()
		} else {
			end.moved = moved
		}
	}
	c.endAttempt(&end)
	return end
}

// end says what the end of a stream means. A stream is lost that ends without every `finished` and without a word of our own,
// OK or not; one that ends behind every `finished` has ended well, whatever is said then.
func (a *attempt) end(lost context.Context, err error) ending {
	switch {
	case errors.Is(err, errUndelivered):
		return ending{err: a.undelivered}
	case a.log != nil && a.log.Complete(), a.log == nil && err == nil:
		return ending{}
	case errors.Is(err, errGone):
		return ending{err: err}
	case rpc.Domain(err) == rpc.WorkerDomain || rpc.Domain(err) == rpc.SchedulerDomain:
		of := a.blame(err)
		if !of.ends() && a.ctx.Err() != nil {
			return ending{err: a.ended()}
		}
		if of == short {
			a.outgrown(err)
		}
		if fault.RefusesScheduler(err) {
			err = fault.Lost(a.lease.WorkerID, a.delivered(), err)
		}
		return ending{err: err, of: of, given: of == short && a.longer <= a.context}
	case a.ctx.Err() != nil:
		return ending{err: a.ended()}
	case a.log == nil && lost.Err() == nil && blameOfCode(status.Code(err)) == request:
		return ending{err: err} // gRPC's own: a method that this worker does not have
	}
	of := either
	if errors.Is(err, errUnsent) {
		of = worker
	}
	if lost.Err() != nil {
		err = context.Cause(lost)
	}
	return ending{err: fault.Lost(a.lease.WorkerID, a.delivered(), err), of: of, lost: true}
}

// blame is of whom a worker's own status speaks.
func (a *attempt) blame(err error) blame {
	of := blameOf(err, a.resumable() && !a.answered)
	switch {
	case a.context > 0 && rpc.Reason(err) == reason.UnknownField: // it is of an earlier version, and has the shorter context
		return short
	case of == short && (a.answered || a.lease.Context == 0 || a.stated > 0 && rpc.Reason(err) != reason.ContextTooShort):
		return request // the request's own context decided it, or nothing is known of the worker's
	}
	return of
}

// delivered is how many tokens the caller has.
func (c *call) delivered() int64 {
	if c.log == nil {
		return 0
	}
	return c.log.Tokens()
}

// stream asks the worker and passes on what it answers; the error is the worker's status, the transport's, or one of the above.
func (a *attempt) stream(ctx context.Context, inexact bool) error {
	out := rpc.Frame{Data: a.message(inexact)}
	if a.context > 0 {
		out.Data = append(out.Data, mem.SliceBuffer(calllog.AppendContext(nil, a.context)))
	}
	up, err := a.lease.Link.Conn().NewStream(ctx, upstream, a.method, a.codec)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsent, err)
	}
	// A failed send means that the stream has ended; its status comes with the receive.
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
				return errShort
			}
			return nil
		}
		a.lease.Link.Heard()
		if err := a.pass(&frame, up); err != nil {
			frame.Free()
			return err
		}
	}
}

// pass passes one frame on. It is sent before the next one is received: what the log counts, the caller gets.
func (a *attempt) pass(frame *rpc.Frame, up grpc.ClientStream) error {
	first := false
	if a.log != nil {
		v, err := a.judge(frame)
		switch {
		case err != nil:
			return err
		case v.Tokens > 0:
			first = a.first.IsZero()
			a.bring(v.Tokens)
		case v.Drop:
			a.answer()
			frame.Free()
			return nil
		}
		if v.Instead != nil {
			frame.Free()
			frame.Data = mem.BufferSlice{mem.SliceBuffer(v.Instead)}
		}
	}
	if a.log != nil && a.log.Open() != a.open {
		a.open = a.log.Open()
		a.handover.leaves(a.open)
	}
	a.answer()
	if a.tokens != nil {
		whole := rpc.Whole(frame.Data)
		a.meter.Add(a.tokens(whole.ReadOnlyData()))
		whole.Free()
	}
	if !a.begun {
		if err := a.begin(up); err != nil {
			return err
		}
	}
	if a.log != nil && a.log.Complete() {
		a.lease.Vacate() // a caller who has the last frame and asks again finds the place free, and no other worker given one too many
	}
	switch err := a.down.SendMsg(frame); {
	case rpc.Reason(err) != "":
		a.undelivered = err
		return errUndelivered
	case err != nil:
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if first {
		rpc.LetOut() // the end of a short call may be here already: it is judged, and logged, when the token has left
	}
	return nil
}

// judge shows a frame to the log.
func (a *attempt) judge(frame *rpc.Frame) (calllog.Verdict, error) {
	if len(frame.Data) == 1 {
		return a.log.Take(frame.Data[0].ReadOnlyData())
	}
	whole := frame.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return a.log.Take(whole.ReadOnlyData())
}

// answer notes the first frame of the attempt.
func (a *attempt) answer() {
	if a.answered {
		return
	}
	a.answered = true
	if a.tells {
		a.tells = false
		a.seen.Again(a.goesOn)
	}
	a.retries.answered()
	a.lease.Progress(a.prompt + a.delivered())
	if a.resumable() {
		a.handover.started(a.log.Class(), a.log.Digest(), a.log.Length())
		if digest := a.log.Digest(); digest != "" { // not every worker tells
			a.lease.Link.Served(a.route.Model, digest)
		}
	}
}

// bring counts tokens.
func (a *attempt) bring(tokens int64) {
	a.answer()
	a.failover.flows()
	a.lease.Progress(tokens)
	a.payPrompt()
	a.meter.Add(tokens)
	a.shown.tokens.Add(tokens)
	a.seen.Tokens(tokens)
	if a.first.IsZero() {
		a.first = time.Now()
		a.seen.FirstToken(a.first.Sub(a.arrived))
	}
}

// begin passes the worker's headers on: they leave with the first frame. A request that is not sent again is let go.
func (a *attempt) begin(up grpc.ClientStream) error {
	a.begun = true
	if a.log == nil {
		a.body = nil
		rpc.LetGo(a.ctx)
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
