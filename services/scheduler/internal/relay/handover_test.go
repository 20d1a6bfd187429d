package relay_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// drain makes a worker report that it drains, or that it is ready.
func (r *rig) drain(id string, drains bool) {
	state := pb.WorkerState_WORKER_STATE_READY
	if drains {
		state = pb.WorkerState_WORKER_STATE_DRAINING
	}
	r.workers[id].Change(func(report *pb.WorkerReport) { report.State = state })
}

// slow answers with a pause before each token.
func slow() workertest.Answer {
	a := workertest.Whole("")
	a.Pause = 5 * time.Millisecond
	return a
}

// begin starts a call and reads some events of it.
func (r *rig) begin(in *pb.GenerateRequest, events int) (grpc.ServerStreamingClient[pb.GenerateResponse], []*pb.GenerateResponse) {
	r.Helper()
	stream, err := r.inference.Generate(r.patient(), in)
	require.NoError(r, err)
	var got []*pb.GenerateResponse
	for len(got) < events {
		m, err := stream.Recv()
		require.NoError(r, err)
		got = append(got, m)
	}
	return stream, got
}

func TestDrainMovesStreamsToAPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": slow(), "w2": slow()})
		in := ask(400)
		type call struct {
			stream grpc.ServerStreamingClient[pb.GenerateResponse]
			got    []*pb.GenerateResponse
		}
		var calls []call
		for range 6 {
			stream, got := r.begin(in, 4)
			calls = append(calls, call{stream, got})
		}
		r.drain("w1", true)
		require.Eventually(t, func() bool { return r.workers["w1"].Running.Load() == 0 }, hang, time.Millisecond)
		require.Eventually(t, func() bool { return r.workers["w2"].Running.Load() == 6 }, hang, time.Millisecond, "they move long before they end")
		for _, c := range calls {
			rest, err := all(c.stream)
			require.NoError(t, err)
			requireEqual(t, whole(t, in), append(c.got, rest...))
		}
		r.idle()
	})
}

func TestUndrainedWorkerKeepsNewStreams(t *testing.T) {
	// A drain that was cancelled moves no stream that begins after it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": slow(), "w2": slow()})
		for range 2 {
			r.workers["w2"].Change(func(report *pb.WorkerReport) { report.State = pb.WorkerState_WORKER_STATE_NOT_READY })
			require.Eventually(t, func() bool { return !r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
			stream, got := r.begin(ask(30), 3)
			require.Equal(t, "w1", got[0].GetStarted().GetWorkerId())
			r.drain("w2", false)
			require.Eventually(t, func() bool { return r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
			before := r.workers["w2"].Generations.Load()
			r.drain("w1", true)
			rest, err := all(stream)
			require.NoError(t, err)
			requireEqual(t, whole(t, ask(30)), append(got, rest...))
			require.Equal(t, before+1, r.workers["w2"].Generations.Load(), "each drain moves it once")
			r.drain("w1", false)
			require.Eventually(t, func() bool { return r.fleet.Snapshot().Route.Workers[0].Serves() }, hang, time.Millisecond)
		}
	})
}

func TestDrainWithoutPeerFinishesTheStream(t *testing.T) {
	other := slow()
	other.Class = "another"
	for name, answers := range map[string]map[string]workertest.Answer{
		"alone":                          {"w1": slow()},
		"with a worker of another class": {"w1": slow(), "w2": other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, answers)
				in := ask(20)
				in.ExpectClassId = proto.String("class") // which w1 alone has
				stream, got := r.begin(in, 3)
				r.drain("w1", true)
				rest, err := all(stream)
				require.NoError(t, err)
				requireEqual(t, whole(t, in), append(got, rest...))
				require.EqualValues(t, 1, r.workers["w1"].Generations.Load())
				if w2 := r.workers["w2"]; w2 != nil {
					require.Zero(t, w2.Generations.Load())
				}
			})
		})
	}
}

func TestDrainMovesACallBeforeItsFirstToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		var first atomic.Pointer[string]
		for id, w := range r.workers {
			w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
				if first.CompareAndSwap(nil, &id) {
					<-stream.Context().Done() // it has not begun
					return stream.Context().Err()
				}
				if len(in.GetResume()) > 0 {
					t.Error("the caller has nothing, so nothing must be resumed")
				}
				return workertest.Whole(id).Generate(in, stream)
			}
		}
		in := ask(5)
		stream, err := r.inference.Generate(r.patient(), in)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return first.Load() != nil }, hang, time.Millisecond)
		r.drain(*first.Load(), true)
		got, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), got)
		r.idle()
	})
}

func TestSecondDrainMovesWhatTheFirstCouldNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": slow(), "w2": slow()})
		serving := func(worker int, serves bool) {
			t.Helper()
			require.Eventually(t, func() bool { return r.fleet.Snapshot().Route.Workers[worker].Serves() == serves }, hang, time.Millisecond)
		}
		searching := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool { return r.places.Stats()[0].Resuming == n }, hang, time.Millisecond)
		}
		r.drain("w2", true)
		serving(1, false)
		in := ask(1200)
		stream, got := r.begin(in, 3)
		r.drain("w1", true)
		searching(1)
		searching(0)
		require.EqualValues(t, 1, r.workers["w1"].Running.Load(), "no peer had a slot, so the worker continues it")
		r.drain("w1", false)
		r.drain("w2", false)
		serving(0, true)
		serving(1, true)
		r.drain("w1", true)
		require.Eventually(t, func() bool { return r.workers["w2"].Running.Load() == 1 }, hang, time.Millisecond, "it moves long before it ends")
		rest, err := all(stream)
		require.NoError(t, err)
		requireEqual(t, whole(t, in), append(got, rest...))
	})
}

func TestResumeLeasesSlotsForOpenOutputsOnly(t *testing.T) {
	// Three of four outputs have ended. The last one needs one slot, and the other worker has just
	// one.
	for name, leave := range map[string]func(*rig){
		"whose worker drains": func(r *rig) { r.drain("w1", true) },
		"whose worker dies":   func(r *rig) { r.processes["w1"].Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": workertest.Whole("")})
				in := ask(2)
				in.Sampling = &pb.Sampling{NumSequences: proto.Int32(4), Seed: proto.Uint64(3)}
				want := whole(t, in)
				ends := 0
				for i, e := range want { // up to the third end
					if e.GetFinished() != nil {
						if ends++; ends == 3 {
							ends = i + 1
							break
						}
					}
				}
				r.workers["w1"].OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
					_ = workertest.Answer{Worker: "w1", Events: ends}.Generate(in, stream)
					<-stream.Context().Done()
					return stream.Context().Err()
				}
				r.workers["w2"].Change(func(report *pb.WorkerReport) { // three sequences of other schedulers leave room for one that resumes
					report.Models[0].Loaded = &pb.LoadResult{MaxSequences: 2}
					report.Load = &pb.LoadStatus{Models: []*pb.ModelLoad{{Name: "m", Running: 3}}}
					report.State = pb.WorkerState_WORKER_STATE_NOT_READY
				})
				load := func() *route.ModelLoad { return r.fleet.Snapshot().Members[1].Load.Of("m") }
				require.Eventually(t, func() bool { return !r.fleet.Snapshot().Route.Workers[1].Serves() && load().Foreign() == 3 }, hang, time.Millisecond)
				stream, got := r.begin(in, ends)
				r.drain("w2", false)
				require.Eventually(t, func() bool { return r.fleet.Snapshot().Route.Workers[1].Serves() }, hang, time.Millisecond)
				leave(r)
				rest, err := all(stream)
				require.NoError(t, err)
				requireEqual(t, want, append(got, rest...))
			})
		})
	}
}
