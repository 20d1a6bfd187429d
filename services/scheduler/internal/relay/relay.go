package relay

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// maxAttempts bounds the workers that one request is given to. Only a request that nothing has come back of is given
// to another, and it may be the request itself that a worker did not survive.
const maxAttempts = 2

// Placer gives each attempt a worker; its error is ctx's cause, or a *route.Refusal.
type Placer interface {
	Place(ctx context.Context, request route.Request) (*admission.Lease, error)
}

// Request is what the relay needs of a decoded request.
type Request struct {
	Route route.Request
	// Prompt is an estimate of the prompt's tokens; they count until the first frame comes.
	Prompt int64
	// Sequences is how many `finished` events an OK stream has; 0 for methods that are not generations, and for a generation
	// that is resumed behind its last one.
	Sequences int64
	// ID names the request; empty leaves the call's own.
	ID string
}

// Decode reads a request's bytes and its call's metadata; its error is a status.
type Decode func(ctx context.Context, raw []byte) (Request, error)

// Relay carries calls. Safe for concurrent use.
type Relay struct {
	places Placer
	codec  grpc.CallOption
}

// New makes a relay over workers.
func New(p Placer) *Relay { return &Relay{places: p, codec: grpc.ForceCodecV2(rpc.FrameCodec())} }

// upstream is the shape of every relayed call: one request, any number of responses.
var upstream = &grpc.StreamDesc{ServerStreams: true}

// Call serves one call of a method by relaying it. The error is a status.
func (r *Relay) Call(down grpc.ServerStream, method string, decode Decode) error {
	var in rpc.Frame
	if err := down.RecvMsg(&in); err != nil {
		return err
	}
	defer in.Free()
	ctx := down.Context()
	raw := in.Data.MaterializeToBuffer(mem.DefaultBufferPool())
	request, err := decode(ctx, raw.ReadOnlyData())
	raw.Free()
	if err != nil {
		return err
	}
	if request.ID != "" {
		rpc.SetRequestID(ctx, request.ID)
	}
	rpc.Annotate(ctx, "model", request.Route.Model)
	var failed error
	var trailer metadata.MD
	for range maxAttempts {
		lease, err := r.places.Place(ctx, request.Route)
		if err != nil {
			if failed == nil {
				return fault.Status(err)
			}
			break // what the worker that was there said is nearer the truth
		}
		c := &carrier{
			lease: lease, down: rpc.Bare(down), method: method, codec: r.codec, request: &in,
			prompt: request.Prompt, sequences: request.Sequences,
		}
		var again bool
		again, failed = c.carry(ctx)
		trailer = c.trailer
		if !again || ctx.Err() != nil {
			break
		}
		if unloaded(failed) {
			request.Route.Unloaded = append(request.Route.Unloaded, lease.WorkerID)
		} else {
			request.Route.Exclude = append(request.Route.Exclude, lease.WorkerID)
		}
	}
	if trailer != nil {
		down.SetTrailer(trailer)
	}
	return failed
}

// carrier is one attempt on one worker.
type carrier struct {
	lease   *admission.Lease
	down    grpc.ServerStream
	method  string
	codec   grpc.CallOption
	request *rpc.Frame // freed when a frame has come: it is not sent again

	prompt    int64 // tokens that the first frame proves computed
	sequences int64 // finished events due before an OK end
	tokens    int64 // relayed so far
	begun     bool  // whether a frame went down: then no other worker may be tried
	trailer   metadata.MD
}

// carry runs the attempt to its end. again is whether another worker may be tried; err is then this one's status.
func (c *carrier) carry(ctx context.Context) (again bool, err error) {
	defer c.lease.End()
	up, cancel := context.WithCancelCause(outgoing(ctx))
	defer cancel(nil)
	lost := c.lease.Link.Lost()
	defer context.AfterFunc(lost, func() { cancel(context.Cause(lost)) })()

	err = c.stream(up)
	rpc.Annotate(ctx, "worker", c.lease.WorkerID)
	if c.sequences > 0 || c.tokens > 0 {
		rpc.Annotate(ctx, "tokens", c.tokens)
	}
	switch {
	case err == nil:
		return false, nil
	case lost.Err() != nil && ctx.Err() == nil:
		return !c.begun, fault.Lost(c.lease.WorkerID, c.tokens, context.Cause(lost))
	case rpc.Info(err) != nil: // a worker's own word
		return !c.begun && (elsewhere(status.Code(err)) || unloaded(err)), err
	case ctx.Err() != nil:
		return false, fault.Status(context.Cause(ctx))
	case broken(err):
		return !c.begun, fault.Lost(c.lease.WorkerID, c.tokens, err)
	}
	return false, err
}

// elsewhere reports whether a worker that refuses with a code speaks of itself: it is full, stops, or has taken the model
// out of service since its last report. Another worker may serve the request.
func elsewhere(code codes.Code) bool {
	return code == codes.ResourceExhausted || code == codes.Unavailable
}

// errShort: a worker ended a generation well without having finished it.
var errShort = errors.New("the stream ended before the generation had finished")

// unloaded reports whether a worker says that it has taken the model out since its last report: it may be asked again when it has
// loaded the model anew.
func unloaded(err error) bool {
	switch rpc.Reason(err) {
	case reason.ModelNotLoaded, reason.ModelDraining, reason.ModelUnloaded:
		return true
	}
	return false
}

// broken reports whether an error without details says that the connection or the worker's process failed.
func broken(err error) bool {
	code := status.Code(err)
	return errors.Is(err, errShort) || code == codes.Unavailable || code == codes.Internal
}

// stream copies frames until the worker ends; the error is the worker's status, or the transport's.
func (c *carrier) stream(ctx context.Context) error {
	up, err := c.lease.Link.Conn().NewStream(ctx, upstream, c.method, c.codec)
	if err != nil {
		return err
	}
	c.request.Data.Ref()
	out := rpc.Frame{Data: c.request.Data}
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
			c.trailer = returned(up.Trailer())
			if !errors.Is(err, io.EOF) {
				return err
			}
			if c.sequences > 0 {
				return fmt.Errorf("%w: %d continuations are missing", errShort, c.sequences)
			}
			return nil
		}
		c.lease.Link.Heard()
		if !c.begun {
			if err := c.begin(ctx, up); err != nil {
				frame.Free()
				return err
			}
		}
		c.count(&frame)
		if err := c.down.SendMsg(&frame); err != nil {
			return err // the caller is gone, its context says so
		}
	}
}

// begin passes the worker's headers on: they leave with the first frame.
func (c *carrier) begin(ctx context.Context, up grpc.ClientStream) error {
	c.begun = true
	c.request.Free()
	rpc.LetGo(ctx)
	c.lease.Progress(c.prompt)
	header, err := up.Header()
	if err != nil {
		return err
	}
	if header = returned(header); header != nil {
		return c.down.SetHeader(header)
	}
	return nil
}

// count reads of a frame what it brings.
func (c *carrier) count(f *rpc.Frame) {
	if c.sequences == 0 {
		return
	}
	var tokens int64
	var finished bool
	if len(f.Data) == 1 {
		tokens, finished = scan(f.Data[0].ReadOnlyData())
	} else {
		whole := f.Data.MaterializeToBuffer(mem.DefaultBufferPool())
		tokens, finished = scan(whole.ReadOnlyData())
		whole.Free()
	}
	if finished {
		c.sequences--
	}
	if tokens > 0 {
		c.tokens += tokens
		c.lease.Progress(tokens)
	}
}
