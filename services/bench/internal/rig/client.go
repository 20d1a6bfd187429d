package rig

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

// A stream that has not ended after streamTimeout hangs; a client tries another scheduler after moveAfter, and gives up after
// patience of refusals in a row.
const (
	streamTimeout = 5 * time.Minute
	moveAfter     = 100 * time.Millisecond
	patience      = 20 * time.Second
)

// client asks one scheduler, and if it moves another one when that one is not there: for the whole answer if it has none of
// it, for the rest otherwise.
type client struct {
	entries []*entry
	home    int // whom it asks
	moves   bool
	board   *board
}

// asked is what came of a request.
type asked struct {
	answer
	left    []string // schedulers that it left, in order
	resumed error    // why it was resumed in its middle; nil if it was not
	longest time.Duration
}

// ask makes one request and reads it to its end.
func (c *client) ask(ctx context.Context, in *pb.GenerateRequest) (a asked, err error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	defer func() { c.board.leave(&a.answer, a.longest, err == nil) }()
	refused := time.Time{}
	for {
		on, before := c.entries[c.home], len(a.ids)
		err = c.attempt(ctx, on, in, &a)
		switch {
		case err == nil || c.moves && a.finished != nil:
			return a, nil
		case len(a.ids) > before:
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		}
		if !c.moves || status.Code(err) != codes.Unavailable || !refused.IsZero() && time.Since(refused) > patience {
			return a, fmt.Errorf("through %s after %d tokens on %s: %w", on.name, len(a.ids), a.started.GetWorkerId(), plain(err))
		}
		a.left = append(a.left, on.name)
		if a.resumed == nil && len(a.ids) > 0 {
			a.resumed = plain(err)
		}
		c.home = (c.home + 1) % len(c.entries)
		if !sleep(ctx, moveAfter) {
			return a, fmt.Errorf("no end within %v: %w", streamTimeout, plain(err))
		}
	}
}

// attempt asks one scheduler for what the answer lacks.
func (c *client) attempt(ctx context.Context, on *entry, in *pb.GenerateRequest, a *asked) error {
	stream, err := on.infer.Generate(ctx, a.rest(in))
	if err != nil {
		return err
	}
	had := len(a.ids)
	for last := time.Now(); ; {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if a.finished == nil {
				return errors.New("it ended well without its end")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if gap := time.Since(last); len(a.ids) > 0 {
			a.longest = max(a.longest, gap)
		}
		last = time.Now()
		if err := a.add(event, had); err != nil {
			return err
		}
		if s := event.GetStarted(); s != nil {
			c.board.enter(&a.answer, s.GetWorkerId())
		}
		c.board.has(&a.answer, len(a.ids))
	}
}

// plain is a status as a line: its code, its reason and its message.
func plain(err error) error {
	if _, ok := status.FromError(err); !ok {
		return err
	}
	return fmt.Errorf("%v %s: %s", status.Code(err), rpc.Info(err).GetReason(), status.Convert(err).Message())
}

// sleep waits; false means that ctx ended first.
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
