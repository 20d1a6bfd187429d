package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/retry"
)

// errCut is a stream that ended well before it should have.
var errCut = errors.New("the server ended the stream too early")

// statistics has the figures of a generation that ended, well or not.
type statistics struct {
	started  *pb.Started
	finished []*pb.Finished
	tokens   int // generated, over all continuations
	began    time.Time
	toFirst  time.Duration
	total    time.Duration
	repeat   string        // how the same seed is given again, "" where there is nothing to say
	inexact  bool          // went on, at a class of worker that may give other tokens
	decoded  uint32        // tokens that servers timed: all but the first of each continuation in each attempt
	longest  time.Duration // that any of them took to decode theirs
	span     trace.Span    // nil: it is not recorded
}

// repeatBy is how a drawn seed is given again; nothing for one that was given, and where nothing is drawn.
func repeatBy(how string, sampling *pb.Sampling) string {
	if sampling.Seed != nil || sampling.Temperature != nil && sampling.GetTemperature() == 0 {
		return ""
	}
	return how
}

// stream runs a generation and calls show with every event; an error of show cancels the call and is
// returned. If the server is lost, another one continues the stream, and show does not notice. leave
// redirects calls to the other server; nil for a single server. Attempts that bring no token are
// paced and bounded like retries. The statistics include the tokens before a failure.
func stream(ctx context.Context, conn grpc.ClientConnInterface, leave func(), req *pb.GenerateRequest,
	show func(*pb.GenerateResponse) error,
) (s statistics, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a call that is left unread ends
	s.began = time.Now()
	defer func() { s.total = time.Since(s.began) }()
	got := receivedBefore(req)
	next := req
	tries := retry.Attempts{}
	for had := 0; ; {
		err := s.receive(ctx, conn, next, func(event *pb.GenerateResponse) error {
			if event.GetStarted() != nil && next != req && event.GetStarted().Exact == nil {
				return nil // the stream that goes on has its own
			}
			if err := got.add(event); err != nil {
				return fmt.Errorf("%w: %w", errCut, err)
			}
			return show(event)
		})
		if s.tokens > had {
			tries, had = retry.Attempts{}, s.tokens
		}
		if err == nil || leave == nil || !serverLost(err) || !tries.Wait(ctx, err) {
			return s, err
		}
		if got.started != nil {
			if got.lacksPrompt(req) {
				return s, err // the next server would report nothing of the prompt
			}
			next = proto.CloneOf(req)
			got.resume(next, false)
		}
		if rpc.Reason(err) != "" {
			leave() // it answered, so that its connection is whole
		}
	}
}

// serverLost returns whether a call failed because its server went away or is leaving, so that another one may continue it.
func serverLost(err error) bool {
	switch rpc.Reason(err) {
	case "", reason.Stopping, reason.WorkerStopping, reason.WorkerDraining, reason.WorkerLost, reason.FleetUnknown:
		return status.Code(err) == codes.Unavailable
	}
	return false
}

// receive reads one attempt to its end.
func (s *statistics) receive(ctx context.Context, conn grpc.ClientConnInterface, req *pb.GenerateRequest,
	show func(*pb.GenerateResponse) error,
) error {
	in, err := pb.NewInferenceServiceClient(conn).Generate(ctx, req)
	if err != nil {
		return failure.OfCall(err, req.GetModel(), nil)
	}
	var resumed []uint32 // tokens of each continuation that this attempt did not make
	ended := 0           // continuations that earlier attempts or the file of --resume ended
	for _, r := range req.GetResume() {
		if r.GetFinished() {
			ended++
		}
	}
	for {
		event, err := in.Recv()
		if errors.Is(err, io.EOF) {
			if want := max(1, int(req.GetSampling().GetNumSequences())); ended < want {
				return fmt.Errorf("%w: %d of %d continuations were finished: send it again", errCut, ended, want)
			}
			return nil
		}
		if err != nil {
			return failure.OfCall(err, req.GetModel(), in.Trailer())
		}
		switch e := event.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			if e.Started.Exact == nil {
				resumed = e.Started.GetResumedTokens()
			}
			s.inexact = s.inexact || e.Started.Exact != nil // in mid-stream: it went on where tokens may differ
			if s.started == nil {
				s.started = e.Started
				s.traceStarted(in.Context(), req)
			}
		case *pb.GenerateResponse_Tokens:
			if s.tokens == 0 {
				s.toFirst = time.Since(s.began)
			}
			s.tokens += len(e.Tokens.GetTokenIds())
		case *pb.GenerateResponse_Finished:
			ended++
			s.finished = append(s.finished, e.Finished)
			s.timed(e.Finished, resumed)
			s.traceFinished()
		}
		if err := show(event); err != nil {
			return err
		}
	}
}

// String is one line for people, short enough for most terminals.
func (s statistics) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	add("%s", plural(s.tokens, "token"))
	if rate := s.rate(); rate > 0 {
		add("%s/s", render.Rate(rate))
	}
	if s.tokens > 0 {
		add("first after %s", render.Duration(s.toFirst))
	}
	if cached := s.started.GetCachedTokens(); cached > 0 {
		add("prompt %d (%d cached)", s.started.GetPromptTokens(), cached)
	} else {
		add("prompt %d", s.started.GetPromptTokens())
	}
	if s.repeat != "" && !s.inexact {
		add("%s %d", s.repeat, s.started.GetSeed())
	} else {
		add("seed %d", s.started.GetSeed())
	}
	if how := s.ending(); how != "" {
		add("%s", how)
	}
	if s.inexact {
		add("continued on another class of worker")
	}
	if id := s.started.GetWorkerId(); id != "" {
		add("%s", render.Line(id))
	}
	return strings.Join(parts, ", ")
}

// plural is a count with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// rate is tokens a second by the server's own clock: the network may bring at once what took a while to make. Without the
// server's timings it is what arrived in the time that the call took, so that it is never more than the truth.
func (s statistics) rate() float64 {
	switch {
	case s.longest > 0:
		return float64(s.decoded) / s.longest.Seconds()
	case s.tokens > 1 && s.total > 0:
		return float64(s.tokens) / s.total.Seconds()
	}
	return 0
}

// timed counts the tokens that an attempt made of a finished continuation, and their time.
func (s *statistics) timed(f *pb.Finished, resumed []uint32) {
	n := f.GetUsage().GetCompletionTokens()
	if int(f.GetOutputIndex()) < len(resumed) {
		n -= min(n, resumed[f.GetOutputIndex()]) // another attempt's or stream's
	}
	if n > 1 {
		s.decoded += n - 1
		s.longest = max(s.longest, f.GetTimings().GetDecode().AsDuration())
	}
}

// ending says why the continuations ended, and of several how many for each reason; "" for none.
func (s statistics) ending() string {
	var reasons []string
	counts := map[string]int{}
	for _, f := range s.finished {
		reason := endingOf(f)
		if counts[reason]++; counts[reason] == 1 {
			reasons = append(reasons, reason)
		}
	}
	for i, reason := range reasons {
		if len(s.finished) > 1 {
			reasons[i] = fmt.Sprintf("%d: %s", counts[reason], reason)
		}
	}
	return strings.Join(reasons, ", ")
}

// endingOf says why one continuation ended.
func endingOf(f *pb.Finished) string {
	switch m := f.GetMatched().(type) {
	case *pb.Finished_Stop:
		return fmt.Sprintf("ended by %q", m.Stop)
	case *pb.Finished_StopTokenId:
		return fmt.Sprintf("ended by token %d", m.StopTokenId)
	}
	if f.GetReason() == pb.FinishReason_FINISH_REASON_LENGTH {
		return "length reached"
	}
	return "ended"
}
