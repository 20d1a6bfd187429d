package relay_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
	"github.com/millrace/millrace/services/scheduler/internal/server"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang bounds waits that end much sooner unless the code under test hangs.
const hang = 30 * time.Second

// grace is how long calls wait for a model without a worker.
const grace = 1500 * time.Millisecond

// queueTime is the longest time in a queue. Only the tests of that limit reach it.
const queueTime = 20 * time.Second

// rig is a scheduler over workers in memory: "w1" at "w1:1" and so on.
type rig struct {
	testing.TB
	net       *workertest.Net
	fleet     *fleet.Fleet
	places    *admission.Admission
	workers   map[string]*workertest.Worker
	processes map[string]*workertest.Process
	inference pb.InferenceServiceClient
}

// newRig starts one worker of model m for each answer, and a scheduler over them. change changes
// the scheduler's server.
func newRig(t testing.TB, o relay.Options, answers map[string]workertest.Answer, change ...func(*rpc.ServerConfig)) *rig {
	t.Helper()
	rpctest.NoLeaks(t)
	r := &rig{TB: t, net: workertest.NewNet(), workers: map[string]*workertest.Worker{}, processes: map[string]*workertest.Process{}}
	var addresses []string
	for id, a := range answers {
		r.start(id, a)
		addresses = append(addresses, id+":1")
	}
	logger := rpctest.Logger(t)
	var err error
	r.fleet, err = fleet.New(fleet.Config{Workers: addresses, Dial: r.net.Dial, Interval: 20 * time.Millisecond,
		Stale: time.Second, BackoffMax: 50 * time.Millisecond, Grace: hang}, logger)
	require.NoError(t, err)
	loader := loading.New(r.fleet, loading.Config{}, logger)
	r.places = admission.New(r.fleet, 0, admission.Grace(grace), admission.MaxQueueTime(queueTime))
	handlers := server.New(r.fleet, relay.New(r.places, o), loader, func(*fleet.Member) int64 { return 0 })
	serving := rpc.ServerConfig{Domain: rpcstatus.Domain, DrainTimeout: 5 * time.Second}
	for _, c := range change {
		c(&serving)
	}
	s := rpc.NewServer(serving, logger)
	handlers.Register(s)
	following, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.fleet.Run(following) }()
	t.Cleanup(func() { cancel(); <-done })
	t.Cleanup(loader.Close)
	lis := rpctest.Listener(t)
	rpctest.Serve(t, s, lis)
	r.inference = pb.NewInferenceServiceClient(rpctest.Dial(t, lis))
	r.await(len(answers))
	return r
}

// start starts a worker. It can start one again that was killed.
func (r *rig) start(id string, a workertest.Answer) {
	r.Helper()
	w := workertest.New(id, "i"+time.Now().String(), "m")
	a.Worker = id
	w.OnGenerate = a.Generate
	if a.Class != "" {
		w.Change(func(report *pb.WorkerReport) { report.ClassId = a.Class })
	}
	if a.Context > 0 {
		w.Change(func(report *pb.WorkerReport) { report.GetModels()[0].ContextLength = uint32(a.Context) })
	}
	r.workers[id], r.processes[id] = w, r.net.Start(r.TB, id+":1", w)
}

// await waits until the scheduler sees n connected workers.
func (r *rig) await(n int) {
	r.Helper()
	require.Eventually(r, func() bool {
		have := 0
		for _, m := range r.fleet.Snapshot().Members {
			if m.Connected {
				have++
			}
		}
		return r.fleet.Snapshot().Route.Known && have == n
	}, hang, time.Millisecond)
}

// waiting returns how many calls wait for a slot.
func (r *rig) waiting() (n int) {
	for _, s := range r.places.Stats() {
		n += s.Waiting
	}
	return n
}

// idle waits until no call runs, neither on a worker nor in the scheduler's books.
func (r *rig) idle() {
	r.Helper()
	for id, w := range r.workers {
		require.Eventually(r, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond, id)
	}
	require.Eventually(r, func() bool {
		for _, m := range r.fleet.Snapshot().Members {
			if m.Load.InFlight() != 0 || m.Load.Tokens() != 0 {
				return false
			}
		}
		return true
	}, hang, time.Millisecond)
}

// patient returns a context without a deadline that is cancelled after hang.
func (r *rig) patient() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	guard := time.AfterFunc(hang, cancel)
	r.Cleanup(func() { guard.Stop(); cancel() })
	return ctx
}

// ask returns a request for a number of tokens.
func ask(tokens int32) *pb.GenerateRequest {
	return &pb.GenerateRequest{Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}, Stopping: &pb.Stopping{MaxTokens: &tokens}}
}

// generate reads a call to its end.
func (r *rig) generate(in *pb.GenerateRequest) ([]*pb.GenerateResponse, error) {
	r.Helper()
	stream, err := r.inference.Generate(r.patient(), in)
	require.NoError(r, err)
	return all(stream)
}

// all reads a stream to its end.
func all(stream grpc.ServerStreamingClient[pb.GenerateResponse]) ([]*pb.GenerateResponse, error) {
	var out []*pb.GenerateResponse
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, err
		}
		out = append(out, m)
	}
}

// whole returns the answer of a worker that is not disturbed.
func whole(t *testing.T, in *pb.GenerateRequest) []*pb.GenerateResponse {
	t.Helper()
	events, err := workertest.Whole("").Of(in)
	require.NoError(t, err)
	return events
}

// wholeOf returns the answer of a worker with a context length that is not disturbed.
func wholeOf(t *testing.T, context int, in *pb.GenerateRequest) []*pb.GenerateResponse {
	t.Helper()
	a := workertest.Whole("")
	a.Context = context
	events, err := a.Of(in)
	require.NoError(t, err)
	return events
}

// requireEqual compares a client's events with the undisturbed answer. Only the worker's id in
// `started` may differ.
func requireEqual(t *testing.T, want, got []*pb.GenerateResponse) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		e := proto.CloneOf(got[i])
		if s := e.GetStarted(); s != nil {
			s.WorkerId = ""
		}
		require.True(t, proto.Equal(want[i], e), "event %d is %v and not %v", i, e, want[i])
	}
}

// requests returns requests whose streams differ in kind.
func requests() map[string]*pb.GenerateRequest {
	all := map[string]*pb.GenerateRequest{"plain": ask(5), "nothing but the prompt": ask(0), "seeded": ask(4), "several outputs": ask(3),
		"all there is": ask(3), "resumed by its client": ask(6), "resumed behind an end": ask(3),
		"as long as the context": {Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}},
		"least and no most":      {Model: "m", Input: &pb.GenerateRequest_Prompt{Prompt: "once"}, Stopping: &pb.Stopping{MinTokens: proto.Int32(500)}}}
	all["nothing but the prompt"].Response = &pb.ResponseOptions{EchoPrompt: proto.Bool(true)}
	all["seeded"].Sampling = &pb.Sampling{Seed: proto.Uint64(99)}
	all["several outputs"].Sampling = &pb.Sampling{NumSequences: proto.Int32(3)}
	in := all["all there is"]
	in.Sampling = &pb.Sampling{NumSequences: proto.Int32(2)}
	in.Response = &pb.ResponseOptions{EchoPrompt: proto.Bool(true), Progress: proto.Bool(true), PromptLogprobs: proto.Int32(0)}
	resume := func(output uint32, sent int, in *pb.GenerateRequest) *pb.Resume {
		out := &pb.Resume{OutputIndex: output, TextBytes: proto.Uint64(0)}
		events, _ := workertest.Whole("").Of(in)
		for _, e := range events {
			if got := e.GetTokens(); e.GetTokens() != nil && got.GetOutputIndex() == output && len(out.TokenIds) < sent {
				out.TokenIds = append(out.TokenIds, got.GetTokenIds()...)
				*out.TextBytes += uint64(len(got.GetText()))
			}
		}
		return out
	}
	in = all["resumed by its client"]
	in.Sampling = &pb.Sampling{Seed: proto.Uint64(3)}
	in.Resume = []*pb.Resume{resume(0, 2, in)}
	in = all["resumed behind an end"]
	in.Sampling = &pb.Sampling{Seed: proto.Uint64(3), NumSequences: proto.Int32(2)}
	ended := resume(1, 3, in)
	ended.Finished = true
	in.Resume = []*pb.Resume{ended}
	return all
}
