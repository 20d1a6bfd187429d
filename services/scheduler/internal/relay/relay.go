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

// Placer leases a slot on a worker for an attempt. The error is ctx's cause or a *route.Refusal.
// Place is safe for concurrent use.
type Placer interface {
	Place(ctx context.Context, request route.Request) (*admission.Lease, error)
}

// DefaultFailoverWait is Options.FailoverWait if that is 0.
const DefaultFailoverWait = 30 * time.Second

// Options are the operator's choices.
type Options struct {
	// FailoverWait is how long a stream that lost its worker waits for another one if the call has
	// no deadline. A deadline replaces it. 0: DefaultFailoverWait.
	FailoverWait time.Duration
	// RefuseInexact ends a stream if no worker of its numerics class is left. Otherwise the stream
	// continues after half of FailoverWait on a worker of another class, and a second `started`
	// with exact=false reports that.
	RefuseInexact bool
	// Observer receives the events of generations; nil: no observer.
	Observer Observer
	// Generations records metrics of generations that were placed; nil: none are recorded.
	Generations *telemetry.Generations
	// Reports adds ORCA load reports for balancers; nil: none are sent.
	Reports *loadreport.Reporter
}

// Request holds the fields of a decoded request that the relay uses.
type Request struct {
	Route route.Request
	// Prompt is an estimate of the prompt's tokens. They count as load until the first frame.
	Prompt int64
	// Generation is the decoded request of a Generate call, whose stream survives its worker. It is
	// nil for other methods. The relay keeps no reference to it.
	Generation *pb.GenerateRequest
	// ID is the request id; if it is empty, the id that the server assigned stays.
	ID string
	// Tokens returns how many tokens a response costs the caller's quota. It is nil for generations,
	// which are metered by frame, and for methods that cost nothing.
	Tokens func(response []byte) int64
}

// Decode reads a request from its bytes and the call's metadata. Its error is a status.
type Decode func(ctx context.Context, raw []byte) (Request, error)

// Relay forwards calls to workers. It is safe for concurrent use.
type Relay struct {
	placer  Placer
	options Options
	codec   grpc.CallOption
	retries retryBudget
	live    liveCalls
}

// New returns a relay whose attempts run on the workers that p leases.
func New(p Placer, o Options) *Relay {
	if o.FailoverWait <= 0 {
		o.FailoverWait = DefaultFailoverWait
	}
	if o.Observer == nil {
		o.Observer = nopObserver{}
	}
	r := &Relay{placer: p, options: o, codec: grpc.ForceCodecV2(rpc.FrameCodec())}
	r.retries.fill()
	return r
}

// Call serves one call of a method. It returns when the call has ended; the error is a status.
func (r *Relay) Call(down grpc.ServerStream, method string, decode Decode) error {
	var frame rpc.Frame
	if err := down.RecvMsg(&frame); err != nil {
		return err
	}
	c, err := r.read(down, method, decode, &frame)
	if err != nil {
		return err
	}
	return c.run()
}

// read decodes a request and returns its call. It holds a decode slot until it returns, because
// the request exists several times here: the received buffers, the flat copy, the decoded message
// and the copy that the call keeps.
func (r *Relay) read(down grpc.ServerStream, method string, decode Decode, frame *rpc.Frame) (*call, error) {
	ctx := down.Context()
	defer rpc.AcquireDecodeSlot(ctx, frame.Data.Len())()
	raw := rpc.Flatten(frame.Data)
	defer raw.Free()
	frame.Free()
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
