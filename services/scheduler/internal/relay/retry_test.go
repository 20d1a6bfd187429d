package relay_test

import (
	"context"
	"slices"
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
	"github.com/millrace/millrace/services/scheduler/internal/relay"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// silent makes a worker accept calls and send nothing. asked counts them.
func silent(w *workertest.Worker, asked *atomic.Int64) {
	w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
		asked.Add(1)
		<-stream.Context().Done()
		return stream.Context().Err()
	}
}

func TestRetryWaitsForTheOnlyWorkerToComeBack(t *testing.T) {
	// A call without a token that lost its only worker waits for that worker as a new call does.
	for name, lose := range map[string]func(*workertest.Process){
		"killed": (*workertest.Process).Kill,
		"frozen": func(p *workertest.Process) { p.Freeze() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}})
				var asked atomic.Int64
				silent(r.workers["w1"], &asked)
				in := ask(9)
				got := make(chan []*pb.GenerateResponse, 2)
				call := func() {
					events, err := r.generate(in)
					if err != nil {
						t.Error(err)
					}
					got <- events
				}
				go call()
				require.Eventually(t, func() bool { return asked.Load() == 1 }, hang, time.Millisecond)
				lose(r.processes["w1"])
				r.await(0)
				go call() // a new one
				time.Sleep(100 * time.Millisecond)
				require.Empty(t, got)
				r.processes["w1"].Kill()
				r.start("w1", workertest.Whole(""))
				for range 2 {
					requireEqual(t, whole(t, in), <-got)
				}
			})
		})
	}
}

func TestRetryForTheOnlyWorkerEndsInTime(t *testing.T) {
	// A call without a token that waits for its only worker ends with the grace, or at its deadline.
	for name, tc := range map[string]struct {
		deadline, least time.Duration
		code            codes.Code
	}{
		"the grace":    {hang, grace, codes.Unavailable},
		"the deadline": {grace / 3, 0, codes.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}})
				var asked atomic.Int64
				silent(r.workers["w1"], &asked)
				ctx, cancel := context.WithTimeout(r.patient(), tc.deadline)
				defer cancel()
				stream, err := r.inference.Generate(ctx, ask(9))
				require.NoError(t, err)
				require.Eventually(t, func() bool { return asked.Load() == 1 }, hang, time.Millisecond)
				killed := time.Now()
				r.processes["w1"].Kill()
				_, err = all(stream)
				require.Equal(t, tc.code, status.Code(err), "%v", err)
				if tc.code == codes.Unavailable {
					require.Equal(t, reason.WorkerLost, rpc.Reason(err), "the loss of its worker explains more than that there is no other")
				}
				require.GreaterOrEqual(t, time.Since(killed), tc.least, "it waited")
			})
		})
	}
}

func TestRetryKeepsThePositionInTheQueue(t *testing.T) {
	// A call that lost its worker goes before calls that arrived after it.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		var order []string // in which calls begin; w2 has one slot, so they begin one after another
		var asked [2]atomic.Int64
		silent(r.workers["w1"], &asked[0])
		release := make(chan struct{})
		began := make(chan string, 8)
		r.workers["w2"].OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			began <- in.GetRequestId()
			<-release
			return workertest.Whole("w2").Generate(in, stream)
		}
		places := func(id string, state pb.WorkerState) {
			r.workers[id].Change(func(report *pb.WorkerReport) {
				report.State, report.Models[0].Loaded = state, &pb.LoadResult{MaxSequences: 1}
			})
		}
		serving := func(n int) {
			require.Eventually(t, func() bool {
				have := 0
				for _, w := range r.fleet.Snapshot().Route.Workers {
					if w.Serves() && w.Models[0].MaxSequences == 1 {
						have++
					}
				}
				return have == n
			}, hang, time.Millisecond)
		}
		places("w1", pb.WorkerState_WORKER_STATE_READY)
		places("w2", pb.WorkerState_WORKER_STATE_NOT_READY)
		serving(1)
		ended := make(chan error, 8)
		call := func(id string, in *pb.GenerateRequest) {
			in.RequestId = &id
			go func() {
				_, err := r.generate(in)
				ended <- err
			}()
		}
		call("first", ask(1))
		require.Eventually(t, func() bool { return asked[0].Load() == 1 }, hang, time.Millisecond)
		places("w1", pb.WorkerState_WORKER_STATE_NOT_READY)
		places("w2", pb.WorkerState_WORKER_STATE_READY)
		require.Eventually(t, func() bool {
			s := r.fleet.Snapshot()
			return !s.Route.Workers[0].Serves() && s.Route.Workers[1].Serves()
		}, hang, time.Millisecond)
		for _, id := range []string{"second", "third"} { // they use the slot, and the one request that may be under way to a full worker
			call(id, ask(1))
			order = append(order, <-began)
		}
		for n, id := range []string{"fourth", "fifth"} {
			call(id, ask(1))
			require.Eventually(t, func() bool { return r.waiting() == n+1 }, hang, time.Millisecond)
		}
		r.processes["w1"].Kill()
		require.Eventually(t, func() bool { return r.waiting() == 3 }, hang, time.Millisecond)
		for range 3 {
			release <- struct{}{}
			order = append(order, <-began)
		}
		close(release)
		require.Equal(t, []string{"second", "third", "first", "fourth", "fifth"}, order)
		for range 5 {
			require.NoError(t, <-ended)
		}
	})
}

func TestRetryWaitsInTheQueueOnlyOnce(t *testing.T) {
	// A call that has waited in the queue for the longest time does not then wait for its lost worker.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, relay.Options{}, map[string]workertest.Answer{"w1": {}, "w2": {}})
		var asked [2]atomic.Int64
		silent(r.workers["w1"], &asked[0])
		silent(r.workers["w2"], &asked[1])
		serves := func(id string, state pb.WorkerState) {
			r.workers[id].Change(func(report *pb.WorkerReport) {
				report.State, report.Models[0].Loaded = state, &pb.LoadResult{MaxSequences: 1}
			})
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(r.fleet.Snapshot().Route.Workers, func(w route.Worker) bool {
					return w.ID == id && w.Models[0].MaxSequences == 1 && w.Serves() == (state == pb.WorkerState_WORKER_STATE_READY)
				})
			}, hang, time.Millisecond)
		}
		ctx, cancel := context.WithCancel(r.patient())
		defer cancel()
		call := func(worker int) chan error {
			before, ended := asked[worker].Load(), make(chan error, 1)
			go func() {
				stream, err := r.inference.Generate(ctx, ask(1))
				if err == nil {
					_, err = all(stream)
				}
				ended <- err
			}()
			require.Eventually(t, func() bool { return asked[worker].Load() == before+1 }, hang, time.Millisecond)
			return ended
		}
		serves("w2", pb.WorkerState_WORKER_STATE_NOT_READY)
		loses := call(0)
		serves("w1", pb.WorkerState_WORKER_STATE_NOT_READY)
		serves("w2", pb.WorkerState_WORKER_STATE_READY)
		others := []chan error{call(1), call(1)} // its slot, and the one request that may be under way to a full worker
		r.processes["w1"].Kill()
		err := <-loses
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
		require.EqualValues(t, 1, r.places.Stats()[0].Expired, "it waited once")
		cancel()
		for _, ended := range others {
			require.Equal(t, codes.Canceled, status.Code(<-ended))
		}
	})
}
