package server_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// endless makes the loads of a worker last until an unload ends them, as on a real worker. It
// reports none of them.
func endless(w *workertest.Worker, id string) {
	var mu sync.Mutex
	loads := map[chan struct{}]bool{}
	w.OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
		ended := make(chan struct{})
		mu.Lock()
		loads[ended] = true
		mu.Unlock()
		<-ended
		return workertest.Refusal(codes.Aborted, reason.LoadEnded, "the load was ended by an unload")
	}
	w.OnUnload = func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(loads) == 0 {
			return nil, workertest.Refusal(codes.NotFound, reason.ModelNotLoaded, "not loaded")
		}
		for ended := range loads {
			close(ended)
		}
		clear(loads)
		return &pb.UnloadModelResponse{WorkerIds: []string{id}, LoadEndedWorkerIds: []string{id}}, nil
	}
}

// begun starts a load and waits until a number of workers have been called in all.
func (r *rig) begun(in *pb.LoadModelRequest, workers []*workertest.Worker, asked int64) (ended <-chan error) {
	r.Helper()
	stream, err := r.models().LoadModel(r.within(), in)
	require.NoError(r, err)
	end := make(chan error, 1)
	go func() {
		_, err := all(stream, nil)
		end <- err
	}()
	require.Eventually(r, func() bool {
		n := int64(0)
		for _, w := range workers {
			n += w.Loads.Load()
		}
		return n == asked
	}, hang, time.Millisecond)
	return end
}

// A load of one worker and a model of another are both gone when UnloadModel answers, and no third
// worker is asked to load.
func TestUnloadEndsLoadsEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		for i, id := range []string{"w1", "w2", "w3"} {
			endless(workers[i], id)
		}
		ended := r.begun(copies(2), workers, 2)
		out, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Len(t, out.GetWorkerIds(), 2)
		require.Equal(t, out.GetWorkerIds(), out.GetLoadEndedWorkerIds())
		err = <-ended
		require.Equal(t, codes.Aborted, status.Code(err), "%v", err)
		require.Equal(t, reason.LoadIncomplete, rpc.Reason(err))
		require.EqualValues(t, 2, workers[0].Loads.Load()+workers[1].Loads.Load()+workers[2].Loads.Load())
		_, err = r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.Equal(t, codes.NotFound, status.Code(err))
	})
}

// A worker that is lost while its load is being ended is not replaced.
func TestEndedLoadAsksNoOtherWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		for i, id := range []string{"w1", "w2", "w3"} {
			endless(workers[i], id)
			inner := workers[i].OnLoad
			workers[i].OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				_ = inner(in, stream)
				return workertest.Refusal(codes.ResourceExhausted, reason.ModelDoesNotFit, "it would not have fitted")
			}
		}
		ended := r.begun(&pb.LoadModelRequest{Model: "m"}, workers, 1)
		_, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, reason.ModelDoesNotFit, rpc.Reason(<-ended))
		require.EqualValues(t, 1, workers[0].Loads.Load()+workers[1].Loads.Load()+workers[2].Loads.Load())
	})
}

// A LoadModel may reach its worker after the UnloadModel that followed it. The model is gone all
// the same when UnloadModel answers.
func TestUnloadFindsLoadThatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := onDisk("w1", "m")
		r, _ := one(t, w)
		late := make(chan struct{})
		w.OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			<-late // it has not begun, for all that the worker knows
			w.Change(func(r *pb.WorkerReport) { r.Models = append(r.Models, workertest.Model("m")) })
			return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{}}})
		}
		ended := r.begun(&pb.LoadModelRequest{Model: "m"}, []*workertest.Worker{w}, 1)
		time.AfterFunc(time.Second, func() { close(late) })
		out, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, []string{"w1"}, out.GetWorkerIds())
		require.EqualValues(t, 100, out.GetFreedBytes())
		require.NoError(t, <-ended)
		list, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
		require.NoError(t, err)
		require.Equal(t, pb.ModelState_MODEL_STATE_ON_DISK, list.GetModels()[0].GetState())
	})
}

// A worker that has the model's file alone and refuses the scheduler does not fail the unload of
// another worker's model. It fails the unload if it may be loading the model.
func TestUnloadPassesRefusalOfWorkerWithoutModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		workers[0].Change(func(r *pb.WorkerReport) { r.Models = append(r.Models, workertest.Model("m")) })
		workers[1].OnUnload = func(*pb.UnloadModelRequest) (*pb.UnloadModelResponse, error) {
			return nil, workertest.Refusal(codes.PermissionDenied, reason.RightMissing, "the key has no right")
		}
		require.Eventually(t, func() bool {
			list, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
			return err == nil && list.GetModels()[0].GetState() == pb.ModelState_MODEL_STATE_READY
		}, hang, time.Millisecond)
		out, err := r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.NoError(t, err)
		require.Equal(t, []string{"w1"}, out.GetWorkerIds())

		refuses := workers[1].OnUnload
		for i, id := range []string{"w1", "w2", "w3"} {
			endless(workers[i], id)
		}
		end := workers[1].OnUnload
		workers[1].OnUnload = refuses
		ended := r.begun(copies(3), workers, 3)
		_, err = r.models().UnloadModel(r.within(), &pb.UnloadModelRequest{Model: "m"})
		require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
		_, err = end(nil)
		require.NoError(t, err)
		require.Error(t, <-ended)
	})
}

// A copy that its worker refuses, because the model has other options there, is reported with the
// worker's words and reason.
func TestReplicaWithOtherOptionsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		workers[0].Change(func(r *pb.WorkerReport) { r.Models = append(r.Models, workertest.Model("m")) })
		workers[0].OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			return workertest.Refusal(codes.FailedPrecondition, reason.LoadOptionsDiffer, "context_length 128, wants 64")
		}
		require.Eventually(t, func() bool {
			list, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
			return err == nil && list.GetModels()[0].GetState() == pb.ModelState_MODEL_STATE_READY
		}, hang, time.Millisecond)
		_, err := all(r.models().LoadModel(r.within(), copies(1)))
		require.Equal(t, reason.LoadOptionsDiffer, rpc.Reason(err), "a single copy's refusal passes unchanged")
		events, err := all(r.models().LoadModel(r.within(), copies(2)))
		require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
		require.Equal(t, reason.LoadOptionsDiffer, rpc.Info(err).GetMetadata()["first_reason"])
		done, failed := results(events)
		require.Len(t, done, 1)
		require.Equal(t, []string{"w1"}, failed)
	})
}

// The age of a model's last use grows between reports, and is 0 while a request runs.
func TestListModelsAddsTimeSinceReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		w := workertest.New("w1", "i", "m", "busy", "failed")
		w.Change(func(r *pb.WorkerReport) {
			r.Models[0].IdleAge, r.Models[1].IdleAge = durationpb.New(43*time.Microsecond), durationpb.New(0)
		})
		r, _ := one(t, w)
		ages := func() map[string]*durationpb.Duration {
			list, err := r.models().ListModels(r.within(), &pb.ListModelsRequest{})
			require.NoError(t, err)
			out := map[string]*durationpb.Duration{}
			for _, m := range list.GetModels() {
				out[m.GetName()] = m.GetIdleAge()
			}
			return out
		}
		first := ages()
		require.Nil(t, first["failed"])
		time.Sleep(time.Minute)
		later := ages()
		require.NotNil(t, first["m"])
		require.GreaterOrEqual(t, later["m"].AsDuration(), time.Minute)
		require.InDelta(t, time.Minute, later["m"].AsDuration()-first["m"].AsDuration(), float64(time.Second))
		require.Zero(t, later["busy"].AsDuration())
		require.Nil(t, later["failed"])
	})
}
