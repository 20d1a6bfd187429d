package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// client runs streams on the schedulers.
type client struct {
	conns   []*grpc.ClientConn
	mix     *Mix
	resumes bool // whether a stream that its scheduler loses is sent to the other one; else it has failed
	began   time.Time
}

// clientPatience bounds how long a client tries schedulers in turn without a token.
const clientPatience = 30 * time.Second

// run runs one stream to its end. What ctx cuts off has failed.
func (c *client) run(ctx context.Context, request, via int) *record {
	r := &record{request: request, via: via, began: time.Since(c.began)}
	defer func() { r.ended = time.Since(c.began) }()
	whole := c.mix.Request(request)
	in, came := whole, time.Now()
	for at := via; ; at = (at + 1) % len(c.conns) {
		before := len(r.arrivals)
		r.err = c.attempt(ctx, at, in, r)
		if len(r.arrivals) > before {
			came = time.Now()
		}
		// UNAVAILABLE without details is a connection that is gone; a scheduler that stops or does not know its fleet yet has them.
		if !c.resumes || status.Code(r.err) != codes.Unavailable || ctx.Err() != nil || time.Since(came) > clientPatience {
			return r
		}
		if in = r.transcript.resume(whole); in == whole {
			r.arrivals, r.worker = nil, ""
		} else if n := len(r.again); n == 0 || r.again[n-1] < len(r.arrivals) {
			r.again = append(r.again, len(r.arrivals))
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// attempt reads one call to its end.
func (c *client) attempt(ctx context.Context, at int, in *pb.GenerateRequest, r *record) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // what is wrong is not read on
	stream, err := pb.NewInferenceServiceClient(c.conns[at]).Generate(ctx, in)
	if err != nil {
		return err
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.add(event, time.Since(c.began)); err != nil {
			return err
		}
	}
}

// failure is a status in one line, with who says it and why.
func failure(err error) string {
	s := status.Convert(err)
	if info := rpc.Info(err); info != nil {
		return fmt.Sprintf("%s %s of %s: %.200s", s.Code(), info.GetReason(), info.GetDomain(), s.Message())
	}
	return fmt.Sprintf("%s: %.200s", s.Code(), s.Message())
}

// first is how long a request takes to its first token or end, on an idle fleet.
func (c *client) first(ctx context.Context, via int, in *pb.GenerateRequest) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := time.Now()
	stream, err := pb.NewInferenceServiceClient(c.conns[via]).Generate(ctx, in)
	if err != nil {
		return 0, err
	}
	for {
		event, err := stream.Recv()
		if err != nil {
			return 0, err
		}
		switch event.GetEvent().(type) {
		case *pb.GenerateResponse_Tokens, *pb.GenerateResponse_Finished:
			return time.Since(asked), nil
		}
	}
}
