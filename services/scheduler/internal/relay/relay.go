package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/loadreport"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/telemetry"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// Placer gives each attempt a worker; its error is ctx's cause, or a *route.Refusal. Safe for concurrent use.
type Placer interface {
	Place(ctx context.Context, request route.Request) (*admission.Lease, error)
}

// DefaultFailoverWait is how long a stream that lost its worker waits for another one, where nothing else is said.
const DefaultFailoverWait = 30 * time.Second

// Options are what an operator may choose.
type Options struct {
	// FailoverWait is how long a stream that lost its worker waits for another one; a call's deadline takes its place. 0:
	// DefaultFailoverWait.
	FailoverWait time.Duration
	// RefuseInexact ends a stream for which no worker of its class is left. Otherwise it goes on, after half of FailoverWait, on
	// one of another class, and a second `started` says so.
	RefuseInexact bool
	// Observer is told how generations go; nil: nobody is.
	Observer Observer
	// Generations measures those that had a place; nil: nobody does.
	Generations *telemetry.Generations
	// Reports tells balancers of them; nil: nobody does.
	Reports *loadreport.Reporter
}

// Request is what the relay needs of a decoded request.
type Request struct {
	Route route.Request
	// Prompt is an estimate of the prompt's tokens; they count until the first frame comes.
	Prompt int64
	// Generation is the decoded request of a Generate call, whose stream outlives its worker; nil for other methods. It is not
	// kept.
	Generation *pb.GenerateRequest
	// ID names the request; empty leaves the call's own.
	ID string
	// Tokens returns the tokens that a response, not of a generation, costs the caller's key. nil: it costs none.
	Tokens func(response []byte) int64
}

// Decode reads a request's bytes and its call's metadata; its error is a status.
type Decode func(ctx context.Context, raw []byte) (Request, error)

// Relay carries calls. Safe for concurrent use.
type Relay struct {
	places  Placer
	options Options
	codec   grpc.CallOption
	retries budget
	running running
}

// New makes a relay over workers.
func New(p Placer, o Options) *Relay {
	if o.FailoverWait <= 0 {
		o.FailoverWait = DefaultFailoverWait
	}
	if o.Observer == nil {
		o.Observer = unseen{}
	}
	r := &Relay{places: p, options: o, codec: grpc.ForceCodecV2(rpc.FrameCodec())}
	r.retries.fill()
	return r
}

// Call serves one call of a method by relaying it. The error is a status.
func (r *Relay) Call(down grpc.ServerStream, method string, decode Decode) error {
	var in rpc.Frame
	if err := down.RecvMsg(&in); err != nil {
		return err
	}
	c, err := r.read(down, method, decode, &in)
	if err != nil {
		return err
	}
	return c.run()
}

// read makes a call of its request, which is there several times over meanwhile.
func (r *Relay) read(down grpc.ServerStream, method string, decode Decode, in *rpc.Frame) (*call, error) {
	ctx := down.Context()
	defer rpc.Turn(ctx, in.Data.Len())()
	raw := rpc.Whole(in.Data)
	defer raw.Free()
	in.Free()
	request, err := decode(ctx, raw.ReadOnlyData())
	if err != nil {
		return nil, err
	}
	if request.ID != "" {
		rpc.SetRequestID(ctx, request.ID)
	}
	rpc.Annotate(ctx, "model", request.Route.Model)
	return newCall(r, down, method, request, raw.ReadOnlyData()), nil
}
