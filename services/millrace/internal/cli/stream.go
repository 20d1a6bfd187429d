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

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// errCut is a stream that ended well before it should have.
var errCut = errors.New("the server ended the stream too early")

// statistics is what is known of a generation when it ended, well or not.
type statistics struct {
	started  *pb.Started
	finished []*pb.Finished
	tokens   int // generated, over all continuations
	toFirst  time.Duration
	total    time.Duration
	repeat   string     // how the same seed is given again, "" where there is nothing to say
	inexact  bool       // went on, at a class of worker that may give other tokens
	span     trace.Span // nil: it is not recorded
}

// repeatBy is how a drawn seed is given again; nothing for one that was given, and where nothing is drawn.
func repeatBy(how string, sampling *pb.Sampling) string {
	if sampling.Seed != nil || sampling.Temperature != nil && sampling.GetTemperature() == 0 {
		return ""
	}
	return how
}

// stream runs a generation and gives every event to show; an error of show cancels the call and is returned. What came
// before a failure is in the statistics.
func stream(ctx context.Context, conn grpc.ClientConnInterface, req *pb.GenerateRequest,
	show func(*pb.GenerateResponse) error,
) (s statistics, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a call that is left unread ends
	began := time.Now()
	defer func() { s.total = time.Since(began) }()
	in, err := pb.NewInferenceServiceClient(conn).Generate(ctx, req)
	if err != nil {
		return s, failed(err, req.GetModel(), nil)
	}
	for {
		event, err := in.Recv()
		if errors.Is(err, io.EOF) {
			want := max(1, int(req.GetSampling().GetNumSequences()))
			for _, r := range req.GetResume() {
				if r.GetFinished() {
					want-- // its end was told before
				}
			}
			if len(s.finished) < want {
				return s, fmt.Errorf("%w: %d of %d continuations were finished: send it again", errCut, len(s.finished), want)
			}
			return s, nil
		}
		if err != nil {
			return s, failed(err, req.GetModel(), in.Trailer())
		}
		switch e := event.GetEvent().(type) {
		case *pb.GenerateResponse_Started:
			if s.started != nil { // in mid-stream: it went on where tokens may differ
				s.inexact = true
				break
			}
			s.started = e.Started
			s.traceStarted(in.Context(), req)
		case *pb.GenerateResponse_Tokens:
			if s.tokens == 0 {
				s.toFirst = time.Since(began)
			}
			s.tokens += len(e.Tokens.GetTokenIds())
		case *pb.GenerateResponse_Finished:
			s.finished = append(s.finished, e.Finished)
			s.traceFinished()
		}
		if err := show(event); err != nil {
			return s, err
		}
	}
}

// String is one line for people.
func (s statistics) String() string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	add("%d tokens", s.tokens)
	if s.tokens > 0 {
		add("first after %s", render.Duration(s.toFirst))
	}
	if rate := s.rate(); rate > 0 {
		add("%s tokens/s", render.Rate(rate))
	}
	if cached := s.started.GetCachedTokens(); cached > 0 {
		add("%d prompt tokens (%d cached)", s.started.GetPromptTokens(), cached)
	} else {
		add("%d prompt tokens", s.started.GetPromptTokens())
	}
	if s.repeat != "" && !s.inexact {
		add("seed %d (%s %d repeats it)", s.started.GetSeed(), s.repeat, s.started.GetSeed())
	} else {
		add("seed %d", s.started.GetSeed())
	}
	if reason := s.ending(); reason != "" {
		add("%s", reason)
	}
	if s.inexact {
		add("continued on another class of worker")
	}
	if id := s.started.GetWorkerId(); id != "" {
		add("worker %s", render.Line(id))
	}
	return strings.Join(parts, ", ")
}

// rate is tokens a second by the server's own clock: the network may bring at once what took a while to make. Without the
// server's timings it is what arrived in the time that the call took, so that it is never more than the truth.
func (s statistics) rate() float64 {
	var decoded uint32
	var longest time.Duration
	for _, f := range s.finished {
		n := f.GetUsage().GetCompletionTokens()
		if resumed := s.started.GetResumedTokens(); int(f.GetOutputIndex()) < len(resumed) {
			n -= min(n, resumed[f.GetOutputIndex()]) // another stream's
		}
		if n > 1 {
			decoded += n - 1
			longest = max(longest, f.GetTimings().GetDecode().AsDuration())
		}
	}
	switch {
	case longest > 0:
		return float64(decoded) / longest.Seconds()
	case s.tokens > 1 && s.total > 0:
		return float64(s.tokens) / s.total.Seconds()
	}
	return 0
}

// ending says why one continuation ended, "" for several or none.
func (s statistics) ending() string {
	if len(s.finished) != 1 {
		return ""
	}
	f := s.finished[0]
	switch m := f.GetMatched().(type) {
	case *pb.Finished_Stop:
		return fmt.Sprintf("ended by %q", m.Stop)
	case *pb.Finished_StopTokenId:
		return fmt.Sprintf("ended by token %d", m.StopTokenId)
	}
	if f.GetReason() == pb.FinishReason_FINISH_REASON_LENGTH {
		return "ended by length"
	}
	return ""
}
