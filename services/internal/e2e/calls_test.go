package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

func ptr[T any](v T) *T { return &v }

// ask returns a greedy request for exactly n tokens.
func ask(model string, tokens int32) *pb.GenerateRequest {
	return &pb.GenerateRequest{
		Model: model, Input: &pb.GenerateRequest_Prompt{Prompt: "Once upon a time"},
		Sampling: &pb.Sampling{Temperature: ptr(float32(0)), Seed: ptr(uint64(1))},
		Stopping: &pb.Stopping{MaxTokens: ptr(tokens), IgnoreEos: ptr(true)},
	}
}

// endless is a request whose end no test waits for: at 2 ms a step it takes two minutes.
func endless() *pb.GenerateRequest { return ask(long, longContext-64) }

// paced is a simulated device whose steps take 2 ms at any load.
var paced = []string{"--device", "sim:step=2ms,prefill=0s,decode=0s", "--load", long}

// outcome is the result of a Generate call.
type outcome struct {
	started  *pb.Started
	ids      []uint32
	text     string
	calls    []string // ids and names of calls of tools
	logprobs []uint32 // bits of the logprobs of tokens and candidates, in order
	finished *pb.Finished
	err      error
}

// add appends an event.
func (o *outcome) add(in *pb.GenerateResponse) error {
	switch e := in.GetEvent().(type) {
	case *pb.GenerateResponse_Started:
		if o.started != nil {
			return errors.New("started came twice")
		}
		o.started = e.Started
	case *pb.GenerateResponse_Tokens:
		before := len(o.ids)
		for _, n := range o.started.GetResumedTokens() { // every call here has one continuation
			before += int(n)
		}
		if o.started == nil || o.finished != nil || int(e.Tokens.GetTokenIndex()) != before {
			return fmt.Errorf("tokens %v came after %d tokens, started %v, finished %v", e.Tokens, len(o.ids), o.started, o.finished)
		}
		o.ids = append(o.ids, e.Tokens.GetTokenIds()...)
		o.text += e.Tokens.GetText()
		for _, p := range e.Tokens.GetParts() {
			if c := p.GetCall(); c != nil {
				o.calls = append(o.calls, c.GetId()+" "+c.GetName())
			}
		}
		bytes := 0
		for _, d := range e.Tokens.GetDetails() {
			bytes += int(d.GetTextBytes())
			o.logprobs = append(o.logprobs, math.Float32bits(d.GetLogprob()))
			for _, c := range d.GetCandidates() {
				o.logprobs = append(o.logprobs, c.GetTokenId(), math.Float32bits(c.GetLogprob()))
			}
		}
		if e.Tokens.GetDetails() != nil && bytes != len(e.Tokens.GetText()) {
			return fmt.Errorf("the tokens of %v bring %d bytes of text", e.Tokens, bytes)
		}
	case *pb.GenerateResponse_Finished:
		if o.finished != nil {
			return errors.New("finished came twice")
		}
		o.finished = e.Finished
	}
	return nil
}

// call is a running Generate call.
type call struct {
	outcome
	stream grpc.ServerStreamingClient[pb.GenerateResponse]
	leave  context.CancelFunc // of calls of beginAll
}

// begin starts a call and reads its first tokens.
func begin(ctx context.Context, on pb.InferenceServiceClient, in *pb.GenerateRequest) (*call, error) {
	stream, err := on.Generate(ctx, in)
	if err != nil {
		return nil, err
	}
	c := &call{stream: stream}
	for len(c.ids) == 0 {
		if err := c.read(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// read receives an event; io.EOF is the end.
func (c *call) read() error {
	in, err := c.stream.Recv()
	if err != nil {
		return err
	}
	return c.add(in)
}

// end reads to the end.
func (c *call) end() outcome {
	for {
		err := c.read()
		switch {
		case err == nil:
			continue
		case !errors.Is(err, io.EOF):
			c.err = err
		case c.finished == nil:
			c.err = errors.New("the call ended well without finished")
		}
		return c.outcome
	}
}

// beginAll starts n calls and returns when all of them have begun.
func beginAll(t *testing.T, on *server, n int, in func() *pb.GenerateRequest) []*call {
	t.Helper()
	calls := make([]*call, n)
	for i := range calls {
		ctx, leave := context.WithCancel(undated(t))
		t.Cleanup(leave)
		c, err := begin(ctx, on.infer, in())
		require.NoError(t, err)
		c.leave = leave
		calls[i] = c
	}
	return calls
}

// heldTokens is the length of a held stream: twice the tokens that fit between a worker and a
// client that does not read.
const heldTokens = 480

// held changes a request so that its stream cannot end before its client has read most of it: its
// events are so large that those in flight fill every buffer. A fault of a worker is certain to
// meet such a stream.
func held(in *pb.GenerateRequest) *pb.GenerateRequest {
	in.Stopping.MaxTokens = ptr(int32(heldTokens))
	if in.Response == nil {
		in.Response = &pb.ResponseOptions{}
	}
	in.Response.OutputLogprobs, in.Response.OutputCandidates = ptr(true), ptr(int32(64))
	return in
}

// beginOn starts calls until one runs on a given worker, returns that one and cancels the others.
func beginOn(t *testing.T, on *server, worker string, in *pb.GenerateRequest) *call {
	t.Helper()
	var elsewhere []*call
	defer func() {
		for _, c := range elsewhere {
			c.leave()
		}
	}()
	for range 100 {
		c := beginAll(t, on, 1, func() *pb.GenerateRequest { return in })[0]
		if c.started.GetWorkerId() == worker {
			return c
		}
		elsewhere = append(elsewhere, c)
	}
	require.FailNow(t, "it gets no call", worker)
	return nil
}

// generate runs a call to its end.
func generate(ctx context.Context, on pb.InferenceServiceClient, in *pb.GenerateRequest) outcome {
	c, err := begin(ctx, on, in)
	if err != nil {
		return outcome{err: err}
	}
	return c.end()
}

// good requires that a server answers a request.
func good(t *testing.T, on *server, model string) outcome {
	t.Helper()
	o := generate(within(t), on.infer, ask(model, 3))
	require.NoError(t, o.err)
	require.Len(t, o.ids, 3)
	require.Equal(t, pb.FinishReason_FINISH_REASON_LENGTH, o.finished.GetReason())
	require.EqualValues(t, 3, o.finished.GetUsage().GetCompletionTokens())
	return o
}

// fault is the machine-readable part of an error.
type fault struct {
	code           codes.Code
	domain, reason string
}

func faultOf(err error) fault {
	return fault{status.Code(err), rpc.Domain(err), rpc.Reason(err)}
}

// Faults of several tests.
var (
	workerLost = fault{codes.Unavailable, rpc.SchedulerDomain, "WORKER_LOST"}
	noWorker   = fault{codes.Unavailable, rpc.SchedulerDomain, "NO_WORKER"}
)
