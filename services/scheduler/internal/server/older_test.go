package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// generation serves Generate on a worker.
type generation = func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error

// older are workers of releases that did not have `resume`, or not all of it, by how they handle
// one.
var older = map[string]generation{
	"refuses it as a field that it does not know": func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if len(in.GetResume()) > 0 {
			return workertest.Refusal(codes.InvalidArgument, reason.UnknownField, "field 14 of GenerateRequest is not known")
		}
		return workertest.Whole("old").Generate(in, stream)
	},
	"refuses it as not built": func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		if len(in.GetResume()) > 0 {
			return workertest.Refusal(codes.Unimplemented, reason.NotBuilt, "resume is not built")
		}
		return workertest.Whole("old").Generate(in, stream)
	},
	"begins again at the first token": func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		in = proto.CloneOf(in)
		in.Resume = nil
		return workertest.Whole("old").Generate(in, stream)
	},
	"goes on and does not say from where": func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		a := workertest.Whole("old")
		a.Change = func(e *pb.GenerateResponse) {
			if s := e.GetStarted(); s != nil {
				s.ResumedTokens = nil
			}
		}
		return a.Generate(in, stream)
	},
}

// serving returns a worker with a generation.
func serving(id string, generate generation) *workertest.Worker {
	w := workertest.New(id, "i1", "m")
	w.OnGenerate = generate
	w.Change(func(r *pb.WorkerReport) { r.Models[0].ClassId = "class" })
	return w
}

// aged makes a worker one of an earlier release, which reports only the sums of its load over all
// models.
func aged(generate generation) *workertest.Worker {
	w := serving("old", generate)
	w.Change(func(r *pb.WorkerReport) { r.Load = &pb.LoadStatus{TotalBlocks: 100, FreeBlocks: 90} })
	return w
}

// become changes the generation of a worker.
func become(w *workertest.Worker, state pb.WorkerState) {
	w.Change(func(r *pb.WorkerReport) { r.State = state })
}

// serve waits until the scheduler sees that n workers serve.
func (r *rig) serve(n int) {
	r.Helper()
	require.Eventually(r, func() bool {
		have := 0
		for _, w := range r.fleet.Snapshot().Route.Workers {
			if w.Serves() {
				have++
			}
		}
		return have == n
	}, hang, time.Millisecond)
}

// requireEvents compares a client's events with the expected ones.
func requireEvents(t *testing.T, want, got []*pb.GenerateResponse) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, proto.Equal(want[i], got[i]), "event %d is %v and not %v", i, got[i], want[i])
	}
}

func TestOlderWorkerServesItsFeatures(t *testing.T) {
	for name, generate := range older {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				r, _ := one(t, aged(generate))
				want, err := workertest.Whole("old").Of(ask("m", 9))
				require.NoError(t, err)
				got, err := all(r.inference().Generate(r.within(), ask("m", 9)))
				require.NoError(t, err)
				requireEvents(t, want, got)
			})
		})
	}
}

// A stream breaks, and only an older worker can continue it.
func TestOlderWorkerNeverSendsWrongTokens(t *testing.T) {
	for name, generate := range older {
		for peer, label := range map[bool]string{true: " beside a younger one", false: " alone"} {
			t.Run(name+label, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rpctest.NoLeaks(t)
					n := workertest.NewNet()
					breaks, old, young := serving("breaks", workertest.Answer{Worker: "breaks", Pause: 5 * time.Millisecond, Events: -1}.Generate),
						aged(generate), serving("young", workertest.Whole("young").Generate)
					become(old, pb.WorkerState_WORKER_STATE_NOT_READY)
					become(young, pb.WorkerState_WORKER_STATE_NOT_READY)
					p := n.Start(t, "a:1", breaks)
					n.Start(t, "b:1", old)
					n.Start(t, "c:1", young)
					r := newRig(t, n, "a:1", "b:1", "c:1")
					r.await(3)
					r.serve(1)
					in := ask("m", 200)
					in.Sampling = &pb.Sampling{Seed: proto.Uint64(7)}
					want, err := workertest.Whole("breaks").Of(in)
					require.NoError(t, err)
					stream, err := r.inference().Generate(r.patient(), in)
					require.NoError(t, err)
					var got []*pb.GenerateResponse
					for range 4 {
						event, err := stream.Recv()
						require.NoError(t, err)
						got = append(got, event)
					}
					become(old, pb.WorkerState_WORKER_STATE_READY)
					r.serve(2)
					if peer {
						become(young, pb.WorkerState_WORKER_STATE_READY)
						r.serve(3)
					}
					p.Kill()
					rest, err := all(stream, nil)
					got = append(got, rest...)
					if peer {
						require.NoError(t, err)
						requireEvents(t, want, got)
						return
					}
					require.Error(t, err, "an end in words, since there is no right one")
					require.NotEmpty(t, rpc.Reason(err))
					require.Less(t, len(got), len(want))
					requireEvents(t, want[:len(got)], got)
				})
			})
		}
	}
}
