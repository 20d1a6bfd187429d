package server_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// grace is how long a model may be without a worker in rigs that load on demand.
const grace = time.Second

// wanting returns a scheduler that loads on demand, over workers w0, w1, ... that have the file of
// m.
func wanting(t *testing.T, n int, change func(*workertest.Worker)) (*rig, []*workertest.Worker, []*workertest.Process) {
	t.Helper()
	rpctest.NoLeaks(t)
	net := workertest.NewNet()
	var workers []*workertest.Worker
	var processes []*workertest.Process
	var addresses []string
	for i := range n {
		w := onDisk(fmt.Sprintf("w%d", i), "m")
		if change != nil {
			change(w)
		}
		workers, addresses = append(workers, w), append(addresses, fmt.Sprintf("w%d:1", i))
		processes = append(processes, net.Start(t, addresses[i], w))
	}
	r := startRig(t, net, rigOptions{stale: time.Second, onDemand: hang, grace: grace}, addresses...)
	r.await(n)
	return r, workers, processes
}

// loadsOf returns how many LoadModel calls each worker got.
func loadsOf(workers []*workertest.Worker) (all []int64) {
	for _, w := range workers {
		all = append(all, w.Loads.Load())
	}
	return all
}

// serves makes a worker's report say that it serves a model.
func serves(w *workertest.Worker, model string) {
	w.Change(func(r *pb.WorkerReport) { r.Models = append(r.Models, workertest.Model(model)) })
}

// result returns the last event of a load.
func result(stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
	return stream.Send(&pb.LoadModelResponse{Event: &pb.LoadModelResponse_Result{Result: &pb.LoadResult{}}})
}

func TestHundredRequestsShareOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := make(chan struct{})
		r, workers, _ := wanting(t, 4, func(w *workertest.Worker) {
			w.OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				<-waiting
				serves(w, in.GetModel())
				return result(stream)
			}
		})
		var wait sync.WaitGroup
		var good atomic.Int64
		for range 100 {
			wait.Go(func() {
				events, err := all(r.inference().Generate(r.within(), ask("m", 3)))
				if err == nil && len(events) == 5 {
					good.Add(1)
				}
			})
		}
		require.Eventually(t, func() bool { return sum(loadsOf(workers)) == 1 }, hang, time.Millisecond)
		close(waiting)
		wait.Wait()
		require.EqualValues(t, 100, good.Load())
		require.EqualValues(t, 1, sum(loadsOf(workers)), "%v", loadsOf(workers))
	})
}

func sum(all []int64) (n int64) {
	for _, one := range all {
		n += one
	}
	return n
}

func TestFailedLoadIsReportedAndNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, _ := wanting(t, 1, func(w *workertest.Worker) {
			w.OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				return rpc.Error{Code: codes.DataLoss, Domain: rpc.WorkerDomain, Reason: reason.ResidentTensorDiffers, Message: "bits"}.Err()
			}
		})
		for range 20 {
			_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
			require.Equal(t, codes.DataLoss, status.Code(err))
			require.Equal(t, reason.ResidentTensorDiffers, rpc.Reason(err))
			require.Equal(t, rpc.WorkerDomain, rpc.Info(err).GetDomain())
			require.Positive(t, rpc.RetryAfter(err))
		}
		require.Less(t, sum(loadsOf(workers)), int64(4), "twenty requests are no twenty loads, at a second between two")
	})
}

func TestOnlyLoadableModelsAreLoadedOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, _ := wanting(t, 2, func(w *workertest.Worker) {
			w.Change(func(report *pb.WorkerReport) {
				report.Files = append(report.Files, &pb.ModelFile{Name: "broken", Problem: "a web page"})
				report.Models = append(report.Models, &pb.ModelStatus{Name: "failed", State: pb.ModelState_MODEL_STATE_FAILED})
				report.Files = append(report.Files, &pb.ModelFile{Name: "failed"})
			})
		})
		for model, want := range map[string]string{
			"nobody": reason.UnknownModel, "../m": reason.InvalidArgument, "": reason.InvalidArgument, "m\x00": reason.UnknownModel,
			"broken": reason.ModelNotLoaded, "failed": reason.ModelNotLoaded,
		} {
			_, err := all(r.inference().Generate(r.within(), ask(model, 1)))
			require.Equal(t, want, rpc.Reason(err), "%q: %v", model, err)
		}
		require.Zero(t, sum(loadsOf(workers)))
	})
}

func TestModelLargerThanEveryWorkerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, _ := wanting(t, 3, func(w *workertest.Worker) {
			w.Change(func(report *pb.WorkerReport) { report.Files[0].NeededBytes = 1 << 60 })
			w.OnLoad = func(*pb.LoadModelRequest, grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: reason.ModelDoesNotFit, Message: "needs"}.Err()
			}
		})
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.ModelDoesNotFit, rpc.Reason(err))
		require.EqualValues(t, 1, sum(loadsOf(workers)))
	})
}

func TestDigestMismatchCausesNoSecondLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, _ := wanting(t, 2, nil)
		other := ask("m", 1)
		want := fmt.Sprintf("%064d", 1)
		other.ExpectModelDigest = &want
		for range 5 {
			_, err := all(r.inference().Generate(r.within(), other))
			require.Equal(t, reason.DigestMismatch, rpc.Reason(err), "%v", err)
		}
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
		require.EqualValues(t, 1, sum(loadsOf(workers)))
	})
}

func TestWorkerLostDuringALoadOnDemandIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		var processes []*workertest.Process
		ready := make(chan struct{})
		r, workers, started := wanting(t, 3, func(w *workertest.Worker) {
			index := len(processes)
			processes = append(processes, nil)
			w.OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				<-ready
				first := false
				once.Do(func() { first = true })
				if first {
					processes[index].Kill()
					<-stream.Context().Done()
					return stream.Context().Err()
				}
				serves(w, in.GetModel())
				return result(stream)
			}
		})
		copy(processes, started)
		close(ready)
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				_, err := all(r.inference().Generate(r.within(), ask("m", 2)))
				require.NoError(t, err)
			})
		}
		wait.Wait()
		require.EqualValues(t, 2, sum(loadsOf(workers)), "%v", loadsOf(workers))
	})
}

func TestModelOfALostWorkerIsLoadedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, processes := wanting(t, 2, nil)
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
		holder := 0
		if workers[1].Loads.Load() > 0 {
			holder = 1
		}
		processes[holder].Kill()
		r.await(1)
		lost := time.Now()
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
		require.EqualValues(t, 1, workers[1-holder].Loads.Load())
		require.Greater(t, time.Since(lost), grace/2, "not before it might have come back")
	})
}

func TestModelOfAReturningWorkerIsNotLoaded(t *testing.T) {
	for name, begun := range map[string]bool{"a new call": false, "one that waits for its first token": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				net := workertest.NewNet()
				holds, stands := onDisk("w0", "m"), onDisk("w1", "m")
				serves(holds, "m")
				holds.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
					<-stream.Context().Done()
					return stream.Context().Err()
				}
				p := net.Start(t, "w0:1", holds)
				net.Start(t, "w1:1", stands)
				r := startRig(t, net, rigOptions{stale: time.Second, onDemand: hang, grace: hang}, "w0:1", "w1:1")
				r.await(2)
				ended := make(chan error, 1)
				call := func() {
					_, err := all(r.inference().Generate(r.patient(), ask("m", 1)))
					ended <- err
				}
				if begun {
					go call()
					require.Eventually(t, func() bool { return holds.Running.Load() == 1 }, hang, time.Millisecond)
				}
				p.Kill()
				r.await(1)
				if !begun {
					go call()
				}
				require.Eventually(t, func() bool { return len(r.places.Stats()) > 0 && r.places.Stats()[0].Waiting == 1 }, hang, time.Millisecond)
				again := onDisk("w0", "m")
				serves(again, "m")
				net.Start(t, "w0:1", again)
				require.NoError(t, <-ended)
				require.Zero(t, stands.Loads.Load())
			})
		})
	}
}

// A file with the same name may be another model: a stream continues with its own model or not at
// all.
func TestStreamLoadsItsOwnDigest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		net := workertest.NewNet()
		holds, stands := onDisk("w0", "m"), onDisk("w1", "m")
		serves(holds, "m")
		holds.OnGenerate = workertest.Answer{Worker: "w0", Pause: 5 * time.Millisecond, Events: -1}.Generate
		var expected atomic.Value
		stands.OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
			if expected.CompareAndSwap(nil, in.GetExpectModelDigest()); in.ExpectModelDigest != nil {
				return workertest.Refusal(codes.FailedPrecondition, reason.DigestMismatch, "another file")
			}
			stands.Change(func(r *pb.WorkerReport) {
				r.Models = append(r.Models, workertest.Model("m"))
				r.Models[0].ModelDigest = "another"
			})
			return result(stream)
		}
		p := net.Start(t, "w0:1", holds)
		net.Start(t, "w1:1", stands)
		r := startRig(t, net, rigOptions{stale: time.Second, onDemand: hang, grace: grace}, "w0:1", "w1:1")
		r.await(2)
		stream, err := r.inference().Generate(r.patient(), ask("m", 200))
		require.NoError(t, err)
		read(t, stream, 4)
		p.Kill()
		r.await(1)
		net.Start(t, "w0:1", workertest.New("w0", "i2")) // it is back without the model
		_, err = all(stream, nil)
		require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
		require.Equal(t, "d-m", expected.Load())
		require.Zero(t, stands.Generations.Load(), "it was not asked for a token")
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err, "who expects nothing has what is there")
	})
}

func TestModelUnloadedInTransitIsLoadedAgain(t *testing.T) {
	for _, said := range []string{reason.ModelNotLoaded, reason.ModelDraining} {
		t.Run(said, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var refusals atomic.Int64
				r, workers, _ := wanting(t, 1, func(w *workertest.Worker) {
					serves(w, "m") // and its report says so on, when it has none any more
					w.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
						if w.Loads.Load() == 0 {
							refusals.Add(1)
							return rpc.Error{Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: said, Message: "idle"}.Err()
						}
						return workertest.Stream(stream, "w0", int(in.GetStopping().GetMaxTokens()), 0)
					}
				})
				events, err := all(r.inference().Generate(r.within(), ask("m", 3)))
				require.NoError(t, err)
				require.Len(t, events, 5)
				require.EqualValues(t, 1, workers[0].Loads.Load())
				require.EqualValues(t, 1, refusals.Load())
			})
		})
	}
}

func TestModelUnloadedOnOneWorkerMovesToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers, _ := wanting(t, 2, func(w *workertest.Worker) { serves(w, "m") })
		workers[0].OnGenerate = func(*pb.GenerateRequest, grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			return rpc.Error{Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.ModelNotLoaded, Message: "idle"}.Err()
		}
		for range 20 {
			_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
			require.NoError(t, err)
		}
		require.Positive(t, workers[0].Generations.Load())
		require.Zero(t, sum(loadsOf(workers)))
	})
}

func TestLoadOnDemandContinuesWithoutWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		finish := make(chan struct{})
		r, workers, _ := wanting(t, 1, func(w *workertest.Worker) {
			w.OnLoad = func(in *pb.LoadModelRequest, stream grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				select {
				case <-finish:
				case <-stream.Context().Done():
					return stream.Context().Err()
				}
				serves(w, in.GetModel())
				return result(stream)
			}
		})
		ctx, cancel := context.WithCancel(r.within())
		stream, err := r.inference().Generate(ctx, ask("m", 1))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return workers[0].Loads.Load() == 1 }, hang, time.Millisecond)
		cancel()
		_, err = stream.Recv()
		require.Equal(t, codes.Canceled, status.Code(err))
		short, end := context.WithTimeout(r.within(), 50*time.Millisecond)
		defer end()
		_, err = all(r.inference().Generate(short, ask("m", 1)))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		close(finish)
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
		require.EqualValues(t, 1, workers[0].Loads.Load())
	})
}

func TestNoLoadOnDemandWithoutTheFlag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, workers := three(t)
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.ModelNotLoaded, rpc.Reason(err))
		require.Zero(t, sum(loadsOf(workers)))
	})
}

func TestLostModelIsLoadedWithItsDigestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expected atomic.Value
		holds := true
		r, workers, processes := wanting(t, 2, func(w *workertest.Worker) {
			if holds {
				serves(w, "m")
				holds = false
			}
			w.OnLoad = func(in *pb.LoadModelRequest, _ grpc.ServerStreamingServer[pb.LoadModelResponse]) error {
				expected.Store(in.GetExpectModelDigest())
				return rpc.Error{Code: codes.FailedPrecondition, Domain: rpc.WorkerDomain, Reason: reason.DigestMismatch, Message: "other"}.Err()
			}
		})
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
		require.Zero(t, sum(loadsOf(workers)), "what is served is not loaded")
		processes[0].Kill()
		r.await(1)
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.DigestMismatch, rpc.Reason(err))
		require.Equal(t, "d-m", expected.Load())
	})
}
