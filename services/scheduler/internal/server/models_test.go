package server_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/loading"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// onDisk returns a worker that has the model's file and has nothing loaded.
func onDisk(id, model string) *workertest.Worker {
	w := workertest.New(id, "i")
	w.Change(func(r *pb.WorkerReport) {
		r.Files = append(r.Files, &pb.ModelFile{Name: model, FileBytes: 100, NeededBytes: 100})
	})
	return w
}

// three returns a rig with three workers that have the file of m.
func three(t *testing.T) (*rig, []*workertest.Worker) {
	t.Helper()
	rpctest.NoLeaks(t)
	n := workertest.NewNet()
	workers := []*workertest.Worker{onDisk("w1", "m"), onDisk("w2", "m"), onDisk("w3", "m")}
	for i, address := range []string{"a:1", "b:1", "c:1"} {
		n.Start(t, address, workers[i])
	}
	r := newRig(t, n, "a:1", "b:1", "c:1")
	r.await(3)
	return r, workers
}

// results returns the workers that reported a result, and those that reported a failure.
func results(events []*pb.LoadModelResponse) (results, failures []string) {
	for _, e := range events {
		if e.GetResult() != nil {
			results = append(results, e.GetWorkerId())
		}
		if e.GetFailure() != nil {
			failures = append(failures, e.GetWorkerId())
		}
	}
	slices.Sort(results)
	slices.Sort(failures)
	return results, failures
}

func copies(n uint32) *pb.LoadModelRequest { return &pb.LoadModelRequest{Model: "m", Replicas: &n} }

func TestLoadIsPlacedAndItsProgressStreamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		events, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.NoError(t, err)
		done, _ := results(events)
		require.Len(t, done, 1)
		require.NotNil(t, events[0].GetProgress())
		require.Equal(t, done[0], events[0].GetWorkerId())

		// The same request again joins the load on the same worker.
		again, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.NoError(t, err)
		same, _ := results(again)
		require.Equal(t, done, same)

		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err, "what is told to be loaded can be used")

		// A request for more copies keeps the existing one.
		events, err = all(r.models().LoadModel(r.within(), copies(3)))
		require.NoError(t, err)
		done, _ = results(events)
		require.Equal(t, []string{"w1", "w2", "w3"}, done)
		for _, w := range workers {
			require.Positive(t, w.Loads.Load())
		}
	})
}

func TestFailedCopyIsReportedAndReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		refuse := func(code codes.Code, reason string) func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			return func(in *pb.LoadModelRequest, _ grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				if in.Replicas != nil {
					return status.Error(codes.InvalidArgument, "replicas reached a worker")
				}
				return rpc.Error{Code: code, Domain: rpc.WorkerDomain, Reason: reason, Message: "no"}.Err()
			}
		}
		workers[1].OnLoad = refuse(codes.ResourceExhausted, "DOES_NOT_FIT")
		events, err := all(r.models().LoadModel(r.within(), copies(2)))
		require.NoError(t, err)
		done, failed := results(events)
		require.Equal(t, []string{"w1", "w3"}, done)
		require.Subset(t, []string{"w2"}, failed)

		workers[1].OnLoad = refuse(codes.FailedPrecondition, "INVALID_MODEL_FILE")
		events, err = all(r.models().LoadModel(r.within(), copies(3)))
		done, failed = results(events)
		require.Equal(t, []string{"w1", "w3"}, done)
		require.Equal(t, []string{"w2"}, failed)
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.Equal(t, reason.LoadIncomplete, rpc.Reason(err))
		require.Equal(t, map[string]string{"model": "m", "loaded": "2", "wanted": "3", "first_reason": "INVALID_MODEL_FILE"},
			rpc.Info(err).GetMetadata())
	})
}

func TestRefusalOfASingleCopyPassesUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := onDisk("w1", "m")
		want := rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "DOES_NOT_FIT", Message: "needs 10, has 5"}.Err()
		w.OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error { return want }
		n.Start(t, "a:1", w)
		r := newRig(t, n, "a:1")
		r.await(1)
		events, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.Empty(t, events)
		require.True(t, proto.Equal(status.Convert(want).Proto(), status.Convert(err).Proto()))
	})
}

// A caller that may load must not get a status that seems to be about its own key.
func TestRefusalOfTheSchedulerIsNotTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := onDisk("w1", "m")
		w.OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			return rpc.Error{Code: codes.PermissionDenied, Domain: rpc.WorkerDomain, Reason: reason.RightMissing, Message: "key scheduler may not"}.Err()
		}
		n.Start(t, "a:1", w)
		r := newRig(t, n, "a:1")
		r.await(1)
		_, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		require.ErrorContains(t, err, "key scheduler may not")
	})
}

func TestUnplaceableLoadsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := three(t)
		for name, tc := range map[string]struct {
			in     *pb.LoadModelRequest
			code   codes.Code
			reason string
		}{
			"no model":                      {&pb.LoadModelRequest{}, codes.InvalidArgument, reason.InvalidArgument},
			"no copies":                     {copies(0), codes.InvalidArgument, reason.InvalidArgument},
			"a million copies":              {copies(1e6), codes.InvalidArgument, reason.InvalidArgument},
			"more copies than workers":      {copies(4), codes.ResourceExhausted, reason.TooFewWorkers},
			"a file that nobody has":        {&pb.LoadModelRequest{Model: "x"}, codes.NotFound, reason.UnknownModel},
			"a path that leaves the folder": {&pb.LoadModelRequest{Model: "../../etc/passwd"}, codes.InvalidArgument, reason.InvalidArgument},
		} {
			t.Log(name) // a bubble has no subtests
			_, err := all(r.models().LoadModel(r.within(), tc.in))
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
		}
	})
}

func TestLoadSurvivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := onDisk("w1", "m")
		finish, cancelled := make(chan struct{}), make(chan bool, 1)
		w.OnLoad = func(_ *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			if err := stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Progress{Progress: &pb.LoadProgress{}}}); err != nil {
				return err
			}
			<-finish
			cancelled <- stream.Context().Err() != nil
			return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{}}})
		}
		n.Start(t, "a:1", w)
		r := newRig(t, n, "a:1")
		r.await(1)
		ctx, cancel := context.WithCancel(r.within())
		stream, err := r.models().LoadModel(ctx, &pb.LoadModelRequest{Model: "m"})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.NoError(t, err)
		cancel()
		_, err = stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		time.Sleep(50 * time.Millisecond) // a cancellation would have arrived
		close(finish)
		require.False(t, <-cancelled)
	})
}

// leaveLoading starts a load on a worker and cancels the call once the load runs.
func (r *rig) leaveLoading(w *workertest.Worker) {
	r.Helper()
	before := w.Loads.Load()
	ctx, cancel := context.WithCancel(r.within())
	stream, err := r.models().LoadModel(ctx, &pb.LoadModelRequest{Model: "m"})
	require.NoError(r, err)
	require.Eventually(r, func() bool { return w.Loads.Load() > before }, hang, time.Millisecond)
	cancel()
	_, err = stream.Recv()
	require.Equal(r, codes.Canceled, status.Code(err))
}

func TestAbandonedLoadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := onDisk("w1", "m")
		finish := make(chan struct{})
		w.OnLoad = func(_ *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			<-finish
			return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{}}})
		}
		n.Start(t, "a:1", w)
		r := startRig(t, n, rigOptions{stale: time.Second, limits: loading.Config{MaxLoads: 2}}, "a:1")
		r.await(1)
		for range 2 {
			r.leaveLoading(w)
		}
		_, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		require.Equal(t, reason.TooManyLoads, rpc.Reason(err))
		require.Equal(t, map[string]string{"max_loads": "2"}, rpc.Info(err).GetMetadata())
		require.Positive(t, rpc.RetryAfter(err))
		close(finish)
		require.Eventually(t, func() bool {
			_, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
			return err == nil
		}, hang, 10*time.Millisecond)
	})
}

func TestEndlessLoadTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := onDisk("w1", "m")
		w.OnLoad = func(_ *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		n.Start(t, "a:1", w)
		r := startRig(t, n, rigOptions{stale: time.Second, limits: loading.Config{MaxLoads: 1, MaxTime: 50 * time.Millisecond}}, "a:1")
		r.await(1)
		_, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.Equal(t, reason.DeadlineExceeded, rpc.Reason(err))
		require.Contains(t, status.Convert(err).Message(), "see ListModels")
		r.leaveLoading(w) // it is given up without its caller too:
		require.Eventually(t, func() bool {
			_, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
			return status.Code(err) == codes.DeadlineExceeded
		}, hang, 10*time.Millisecond)
	})
}

func TestWorkerLostWhileLoadingIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		for _, id := range []string{"w1", "w2"} {
			w := onDisk(id, "m")
			p := n.Start(t, id+":1", w)
			if id == "w2" { // the first by rank
				w.OnLoad = func(_ *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
					p.Kill()
					<-stream.Context().Done()
					return stream.Context().Err()
				}
			}
		}
		r := newRig(t, n, "w1:1", "w2:1")
		r.await(2)
		events, err := all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "m"}))
		require.NoError(t, err)
		done, failed := results(events)
		require.Equal(t, []string{"w1"}, done)
		if len(failed) > 0 {
			require.Equal(t, []string{"w2"}, failed)
		}
	})
}

func TestUnloadReachesEveryWorkerWithTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "a:1", workertest.New("w1", "i", "m"))
		n.Start(t, "b:1", workertest.New("w2", "i", "m"))
		n.Start(t, "c:1", workertest.New("w3", "i", "x"))
		r := newRig(t, n, "a:1", "b:1", "c:1")
		r.await(3)
		out, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, []string{"w1", "w2"}, out.GetWorkerIds())
		require.EqualValues(t, 200, out.GetFreedBytes())
		require.Eventually(t, func() bool {
			_, err = r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
			return status.Code(err) == codes.NotFound && rpc.Reason(err) == reason.ModelNotLoaded
		}, hang, time.Millisecond)
	})
}

func TestUnloadedModelIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i", "m")
		w.OnUnload = func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			// The report arrives after the answer.
			time.AfterFunc(200*time.Millisecond, func() { w.Change(func(r *pb.WorkerReport) { r.Models = nil }) })
			return &pb.UnloadModelResponse{FreedBytes: 100}, nil
		}
		r, _ := one(t, w)
		_, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		list, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetModels(), 1)
		require.Equal(t, pb.ModelState_MODEL_STATE_ON_DISK, list.GetModels()[0].GetState())
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.ModelNotLoaded, rpc.Reason(err), "%v", err)
	})
}

func TestUnusableFileIsNotLoadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := onDisk("w1", "m")
		w.Change(func(r *pb.WorkerReport) { r.Files[0].Problem = "the file is a web page" })
		r, _ := one(t, w)
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.ModelNotLoaded, rpc.Reason(err), "%v", err)
		require.ErrorContains(t, err, "its file cannot be loaded: see ListModels for why")
	})
}

func TestUnreportedUnloadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i", "m")
		w.OnUnload = func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			return &pb.UnloadModelResponse{FreedBytes: 100}, nil
		}
		r, _ := one(t, w)
		out, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, []string{"w1"}, out.GetWorkerIds())
	})
}

func TestUnloadOfAFrozenWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i", "m")
		r, p := one(t, w)
		defer p.Thaw()
		w.OnUnload = func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			p.Freeze()
			return &pb.UnloadModelResponse{}, nil
		}
		_, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	})
}

func TestListModelsMergesTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		other := workertest.New("w3", "i", "m")
		other.Change(func(r *pb.WorkerReport) { r.Models[0].ModelDigest = "other" })
		n.Start(t, "a:1", workertest.New("w1", "i", "m"))
		n.Start(t, "b:1", workertest.New("w2", "i", "m"))
		n.Start(t, "c:1", other)
		n.Start(t, "d:1", onDisk("w4", "m"))
		r := newRig(t, n, "a:1", "b:1", "c:1", "d:1")
		r.await(4)
		out, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
		require.NoError(t, err)
		require.Len(t, out.GetModels(), 3)
		require.Equal(t, []string{"w1", "w2"}, out.GetModels()[0].GetWorkerIds())
		require.Equal(t, "d-m", out.GetModels()[0].GetModelDigest())
		require.EqualValues(t, 100, out.GetModels()[0].GetFileBytes())
		require.Equal(t, []string{"w3"}, out.GetModels()[1].GetWorkerIds())
		require.Equal(t, pb.ModelState_MODEL_STATE_ON_DISK, out.GetModels()[2].GetState())
		require.Equal(t, []string{"w4"}, out.GetModels()[2].GetWorkerIds())
	})
}

func TestUnknownFleetIsReportedByEveryMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "a:1", workertest.New("w1", "i", "m")).Freeze()
		r := newRig(t, n, "a:1")
		check := func(err error) {
			t.Helper()
			if rpc.Reason(err) == reason.NoWorker { // the fleet has detected the silence before
				return
			}
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.Equal(t, reason.FleetUnknown, rpc.Reason(err))
		}
		_, err := all(r.inference().Generate(r.within(), ask("nope", 1)))
		check(err)
		_, err = all(r.models().LoadModel(r.within(), &pb.LoadModelRequest{Model: "nope"}))
		check(err)
		_, err = r.models().ListModels(r.within(), &pb.ListModelsRequest{})
		check(err)
		_, err = r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "nope"})
		check(err)
	})
}

func TestWatchFleetSendsAtOnceAndOnChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		p := n.Start(t, "a:1", workertest.New("w1", "i", "m"))
		r := newRig(t, n, "a:1", "b:1")
		r.await(1)
		ctx, cancel := context.WithCancel(r.within())
		defer cancel()
		stream, err := r.operators().WatchFleet(ctx, &pb.WatchFleetRequest{Interval: durationpb.New(100 * time.Millisecond)})
		require.NoError(t, err)
		first, err := stream.Recv()
		require.NoError(t, err)
		require.Len(t, first.GetWorkers(), 2)
		a, b := first.GetWorkers()[0], first.GetWorkers()[1]
		require.True(t, a.GetConnected())
		require.Equal(t, "w1", a.GetReport().GetWorkerId())
		require.NotNil(t, a.GetAge())
		require.False(t, b.GetConnected())
		require.Contains(t, b.GetProblem(), "refused")
		p.Kill()
		for {
			next, err := stream.Recv()
			require.NoError(t, err)
			if !next.GetWorkers()[0].GetConnected() {
				break
			}
		}
	})
}

func TestWatchFleetKeepsItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := one(t, workertest.New("w1", "i", "m"))
		stream, err := r.operators().WatchFleet(r.within(), &pb.WatchFleetRequest{Interval: durationpb.New(time.Millisecond)})
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, []rpc.Violation{{Field: "interval", Description: "must be in [100ms, 1h0m0s]"}}, rpc.Violations(err))
	})
}
