package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// A client that resumes gives up after patience without a token, and waits for retryDelay between
// attempts.
const (
	patience   = 30 * time.Second
	retryDelay = 20 * time.Millisecond
)

// client runs streams on schedulers.
type client struct {
	schedulers []*scheduler
	request    func(i int) *pb.GenerateRequest
	resumes    bool // a stream that loses its scheduler continues on the next one; else it has failed
	began      time.Time
	live       live
}

// run runs one stream to its end. It has failed if ctx ends first.
func (c *client) run(ctx context.Context, request, via int) *record {
	r := &record{request: request, via: via, began: time.Since(c.began)}
	defer func() { r.ended = time.Since(c.began) }()
	defer c.live.end(r)
	whole := c.request(request)
	in, progress := whole, time.Now()
	for n := via; ; n = (n + 1) % len(c.schedulers) {
		before := len(r.arrivals)
		r.err = c.attempt(ctx, c.schedulers[n], in, r)
		if len(r.arrivals) > before {
			progress = time.Now()
		}
		if !c.resumes || status.Code(r.err) != codes.Unavailable || ctx.Err() != nil || time.Since(progress) > patience {
			return r
		}
		in = r.again(whole)
		r.moves = append(r.moves, move{c.schedulers[n].name, len(r.arrivals), r.err})
		sleep(ctx, retryDelay)
	}
}

// attempt reads one call to its end.
func (c *client) attempt(ctx context.Context, s *scheduler, in *pb.GenerateRequest, r *record) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the call if an event was wrong
	stream, err := s.infer.Generate(ctx, in)
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
		c.live.update(r)
	}
}

// first returns the time that a request takes to its first token or end.
func (c *client) first(ctx context.Context, via int, in *pb.GenerateRequest) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := time.Now()
	stream, err := c.schedulers[via].infer.Generate(ctx, in)
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
			return time.Since(sent), nil
		}
	}
}

// failure formats a status in one line, with its reason and domain.
func failure(err error) string {
	s := status.Convert(err)
	if info := rpc.Info(err); info != nil {
		return fmt.Sprintf("%s %s of %s: %.200s", s.Code(), info.GetReason(), info.GetDomain(), s.Message())
	}
	return fmt.Sprintf("%s: %.200s", s.Code(), s.Message())
}

// sleep waits for d and returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
