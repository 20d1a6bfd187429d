package target

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Generation is the stream of one generation. If its server is lost, another one continues it, and
// the events are those that the lost one would have sent. One goroutine may use it.
type Generation struct {
	client *Client
	ctx    context.Context
	stream grpc.ServerStreamingClient[pb.GenerateResponse]
	first  *pb.GenerateResponse // until Next returns it
	got    received
	// OwnTenant: the server has keys, so the request's fairness_id was left out and the tenant is
	// that of the caller's key.
	OwnTenant bool
}

// Generate starts a generation and waits for its first event. If it returns an error, nothing was
// generated. The caller must end ctx, which ends the generation and releases its resources.
func (c *Client) Generate(ctx context.Context, in *pb.GenerateRequest) (*Generation, error) {
	own := in.FairnessId != nil && c.tenants.fixed(time.Now())
	if own {
		in.FairnessId = nil
	}
	g, err := c.generate(ctx, in)
	if err != nil && in.FairnessId != nil && rpc.Reason(err) == reason.OtherTenant {
		// Clients name their users because OpenAI asks them to, and do not know which servers have
		// keys.
		c.tenants.set(time.Now())
		own, in.FairnessId = true, nil
		g, err = c.generate(ctx, in)
	}
	if err != nil {
		return nil, err
	}
	g.OwnTenant = own
	g.got = c.keep(in)
	context.AfterFunc(ctx, func() { c.kept.Add(-g.got.bytes) })
	return g, nil
}

func (c *Client) generate(ctx context.Context, in *pb.GenerateRequest) (*Generation, error) {
	stream, err := c.infer.Generate(ctx, in)
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return &Generation{client: c, ctx: ctx, stream: stream, first: first}, nil
}

// Next returns the next event. It returns io.EOF after the last one, and the status of a generation
// that failed.
func (g *Generation) Next() (*pb.GenerateResponse, error) {
	for {
		event := g.first
		if g.first = nil; event == nil {
			var err error
			if event, err = g.stream.Recv(); err != nil {
				if err := g.resume(err); err != nil {
					return nil, err
				}
				continue
			}
		}
		return event, g.got.add(event)
	}
}

// Each calls handle with each event that is left, until the last one or an error.
func (g *Generation) Each(handle func(e *pb.GenerateResponse) error) error {
	for {
		e, err := g.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = handle(e)
		}
		if err != nil {
			return err
		}
	}
}

// tenants remembers that the servers have keys, each with a tenant of its own.
type tenants struct{ until atomic.Int64 }

// rememberTenants is how long that is remembered. Servers rarely gain or lose keys.
const rememberTenants = time.Minute

func (t *tenants) fixed(now time.Time) bool { return now.UnixNano() < t.until.Load() }
func (t *tenants) set(now time.Time)        { t.until.Store(now.Add(rememberTenants).UnixNano()) }
