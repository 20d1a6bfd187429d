package load

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// Outcome is what became of one call.
type Outcome struct {
	Index      uint64
	Due, Sent  time.Time     // in a closed loop they are the same
	FirstToken time.Duration // from Due; 0: there was none
	Total      time.Duration // from Due
	Gaps       []Gap         // between messages with tokens
	Prompt     int           // tokens asked for
	Cached     int           // of them, from the prefix cache
	Tokens     int           // received
	Messages   int           // with tokens
	Code       codes.Code
	Reason     string // of the status
	Message    string // of the status
	Cut        bool   // the run was interrupted: neither a success nor an error
}

// Gap is the time before a message with tokens, since the one before it.
type Gap struct {
	After  time.Duration
	Tokens int
}

// Observer sees a call while it runs; any of its functions may be nil. They are called by the goroutine of the call.
type Observer struct {
	First  func()
	Tokens func(n int)
	IDs    func(ids []uint32)
}

// Call makes one call and waits for its end; timeout > 0 is its deadline. Gaps are appended to gaps.
func Call(ctx context.Context, conn grpc.ClientConnInterface, in *pb.GenerateRequest, due time.Time, timeout time.Duration,
	see Observer, gaps []Gap) Outcome {
	out := Outcome{Gaps: gaps, Prompt: len(in.GetTokenIds().GetIds())}
	return follow(ctx, due, timeout, out, see, func(ctx context.Context) (events, error) {
		return pb.NewInferenceServiceClient(conn).Generate(ctx, in)
	})
}

// events are what a call is answered with.
type events interface {
	Recv() (*pb.GenerateResponse, error)
}

// follow makes a call that begin sends, and says in out what became of it.
func follow(ctx context.Context, due time.Time, timeout time.Duration, out Outcome, see Observer,
	begin func(context.Context) (events, error)) Outcome {
	out.Due, out.Sent = due, time.Now()
	callCtx, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		cancel()
		callCtx, cancel = context.WithDeadline(ctx, out.Sent.Add(timeout))
	}
	defer cancel()
	stream, err := begin(callCtx)
	if err == nil {
		err = out.read(stream, see)
	}
	out.Total = time.Since(due)
	if err == nil {
		return out
	}
	if ctx.Err() != nil {
		out.Cut = true
	}
	s := status.Convert(err)
	out.Code, out.Reason, out.Message = s.Code(), rpc.Reason(err), s.Message()
	return out
}

// errNoFinish: the stream ended well without saying so.
var errNoFinish = status.Error(codes.DataLoss, "the stream ended OK without a finished event")

// read takes the events to their end.
func (o *Outcome) read(stream events, see Observer) error {
	finished := false
	var last time.Time
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if !finished {
				return errNoFinish
			}
			return nil
		}
		if err != nil {
			return err
		}
		if event.GetFinished() != nil {
			finished = true
		}
		if started := event.GetStarted(); started != nil {
			o.Cached = int(started.GetCachedTokens())
		}
		n := len(event.GetTokens().GetTokenIds())
		if n == 0 {
			continue
		}
		now := time.Now()
		if o.Messages == 0 {
			o.FirstToken = now.Sub(o.Due)
			if see.First != nil {
				see.First()
			}
		} else {
			o.Gaps = append(o.Gaps, Gap{After: now.Sub(last), Tokens: n})
		}
		last = now
		o.Messages++
		o.Tokens += n
		if see.Tokens != nil {
			see.Tokens(n)
		}
		if see.IDs != nil {
			see.IDs(event.GetTokens().GetTokenIds())
		}
	}
}
