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
	"github.com/millrace/millrace/services/scheduler/internal/fault"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/server"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang is a guard: what is waited for comes much sooner.
const hang = 30 * time.Second

// grace is how long the rigs' calls wait for a worker.
const grace = 1500 * time.Millisecond

// queueTime is how long they wait for a place at most; no other test waits as long.
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

// newRig starts workers of model m that answer as the function says, and a scheduler over them; change changes its server.
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
	handlers := server.New(r.fleet, relay.New(r.places, o), loader)
	serving := rpc.ServerConfig{Domain: fault.Domain, DrainTimeout: 5 * time.Second}
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

// start starts a worker, again if it was killed.
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

// await waits until the scheduler sees as many connected workers.
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

// waiting is how many calls wait for a place.
func (r *rig) waiting() (n int) {
	for _, s := range r.places.Stats() {
		n += s.Waiting
	}
	return n
}

// idle waits until no worker has anything under way, here or there.
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

// patient is a context without a deadline, with the hang guard.
func (r *rig) patient() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	guard := time.AfterFunc(hang, cancel)
	r.Cleanup(func() { guard.Stop(); cancel() })
	return ctx
}

// ask is a request for as many tokens.
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

// whole is what one worker answers undisturbed.
func whole(t *testing.T, in *pb.GenerateRequest) []*pb.GenerateResponse {
	t.Helper()
	events, err := workertest.Whole("").Of(in)
	require.NoError(t, err)
	return events
}

// wholeOf is what a worker with such a context answers undisturbed.
func wholeOf(t *testing.T, context int, in *pb.GenerateRequest) []*pb.GenerateResponse {
	t.Helper()
	a := workertest.Whole("")
	a.Context = context
	events, err := a.Of(in)
	require.NoError(t, err)
	return events
}

// requireEqual compares what a client got with the undisturbed answer; whose name is in `started` may differ.
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
