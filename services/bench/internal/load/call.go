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

// Outcome is the result of one call.
type Outcome struct {
	Index      uint64
	Due, Sent  time.Time     // equal in a closed loop
	FirstToken time.Duration // from Due; 0: no token arrived
	Total      time.Duration // from Due
	Gaps       []Gap         // between messages with tokens
	Prompt     int           // tokens of the prompt
	Cached     int           // of these, from the prefix cache
	Tokens     int           // received
	Messages   int           // with tokens
	Code       codes.Code
	Reason     string // of the status
	Message    string // of the status
	Cut        bool   // interrupted by the end of the run: neither a success nor an error
}

// Gap is the time between two messages with tokens.
type Gap struct {
	After  time.Duration
	Tokens int
}

// Observer is called while a call runs, by the goroutine of the call. Any of its functions may be
// nil.
type Observer struct {
	First  func()
	Tokens func(n int)
	IDs    func(ids []uint32)
}

// Call makes one call and waits for its end. A timeout > 0 sets its deadline. Call appends to gaps.
func Call(ctx context.Context, conn grpc.ClientConnInterface, in *pb.GenerateRequest, due time.Time, timeout time.Duration,
	observer Observer, gaps []Gap) Outcome {
	out := Outcome{Gaps: gaps, Prompt: len(in.GetTokenIds().GetIds()), Due: due, Sent: time.Now()}
	callCtx, cancel := context.WithCancel(ctx)
	if timeout > 0 {
		cancel()
		callCtx, cancel = context.WithDeadline(ctx, out.Sent.Add(timeout))
	}
	defer cancel()
	stream, err := pb.NewInferenceServiceClient(conn).Generate(callCtx, in)
	if err == nil {
		err = out.read(stream, observer)
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

// errNoFinish is the result of a stream that ended with OK but without a finished event.
var errNoFinish = status.Error(codes.DataLoss, "the stream ended OK without a finished event")

// read receives the events to the end.
func (o *Outcome) read(stream grpc.ServerStreamingClient[pb.GenerateResponse], observer Observer) error {
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
			if observer.First != nil {
				observer.First()
			}
		} else {
			o.Gaps = append(o.Gaps, Gap{After: now.Sub(last), Tokens: n})
		}
		last = now
		o.Messages++
		o.Tokens += n
		if observer.Tokens != nil {
			observer.Tokens(n)
		}
		if observer.IDs != nil {
			observer.IDs(event.GetTokens().GetTokenIds())
		}
	}
}
