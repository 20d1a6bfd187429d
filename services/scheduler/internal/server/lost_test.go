package server_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestKilledWorkerEndsItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		waits(w, 3)
		r, p := one(t, w)
		stream, err := r.inference().Generate(r.patient(), ask("m", 9))
		require.NoError(t, err)
		read(t, stream, 4)
		p.Kill()
		_, err = stream.Recv()
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
		require.Equal(t, rpc.SchedulerDomain, rpc.Domain(err))
		require.Equal(t, map[string]string{"worker_id": "w1", "tokens_relayed": "3"}, rpc.Info(err).GetMetadata())

		r.await(0)
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.NoWorker, rpc.Reason(err))
		require.Equal(t, codes.Unavailable, status.Code(err))

		r.net.Start(t, "a:1", workertest.New("w1", "i2", "m"))
		r.await(1)
		_, err = all(r.inference().Generate(r.within(), ask("m", 1)))
		require.NoError(t, err)
	})
}

func TestFrozenWorkerEndsItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		waits(w, 2)
		r, p := one(t, w)
		stream, err := r.inference().Generate(r.patient(), ask("m", 9))
		require.NoError(t, err)
		read(t, stream, 3)
		p.Freeze()
		_, err = stream.Recv()
		require.Equal(t, reason.WorkerLost, rpc.Reason(err), "%v", err)
		require.Contains(t, status.Convert(err).Message(), "sends nothing")
		p.Thaw()
		r.await(1)
		require.Eventually(t, func() bool { return w.Running.Load() == 0 }, hang, time.Millisecond)
	})
}

func TestBusyWorkerIsNotLostWhileTokensArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		busy := make(chan struct{})
		defer close(busy)
		var generating atomic.Bool
		w.OnHealth = func(*pb.HealthResponse) {
			if generating.Load() {
				<-busy
			}
		}
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			generating.Store(true)
			return workertest.Stream(stream, "w1", 100, 20*time.Millisecond)
		}
		n.Start(t, "a:1", w)
		r := newRigWith(t, n, 700*time.Millisecond, "a:1")
		r.await(1)
		got, err := all(r.inference().Generate(r.within(), ask("m", 100)))
		require.NoError(t, err)
		require.Len(t, got, 102)
	})
}

func TestWorkerLostBeforeTheFirstFrameIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		dies := workertest.New("w1", "i1", "m")
		lives := workertest.New("w2", "i1", "m")
		p := n.Start(t, "a:1", dies)
		n.Start(t, "b:1", lives)
		dies.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			p.Kill()
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		r := newRig(t, n, "a:1", "b:1")
		r.await(2)
		for range 20 { // until one was given to the worker that dies
			_, err := all(r.inference().Generate(r.within(), ask("m", 2)))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, dies.Generations.Load(), int64(1))
	})
}

func TestFullWorkerIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		full := func(_ *pb.GenerateRequest, _ grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			return rpc.Error{Code: codes.ResourceExhausted, Domain: rpc.WorkerDomain, Reason: "QUEUE_FULL", Message: "full", RetryAfter: time.Second}.Err()
		}
		a, b := workertest.New("w1", "i", "m"), workertest.New("w2", "i", "m")
		a.OnGenerate = full
		n.Start(t, "a:1", a)
		p := n.Start(t, "b:1", b)
		r := newRig(t, n, "a:1", "b:1")
		r.await(2)
		for range 10 {
			_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
			require.NoError(t, err)
		}
		p.Kill()
		r.await(1)
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, "QUEUE_FULL", rpc.Reason(err))
		require.Equal(t, rpc.WorkerDomain, rpc.Domain(err))
	})
}

func TestWorkerOutOfServiceIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		gone := rpc.Error{Code: codes.Unavailable, Domain: rpc.WorkerDomain, Reason: "MODEL_OUT_OF_SERVICE", Message: "a tensor differs"}.Err()
		a, b := workertest.New("w1", "i", "m"), workertest.New("w2", "i", "m")
		events := 0
		a.OnGenerate = func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			return workertest.Answer{Worker: "w1", Events: events, Err: gone}.Generate(in, stream)
		}
		n.Start(t, "a:1", a)
		p := n.Start(t, "b:1", b)
		r := newRig(t, n, "a:1", "b:1")
		r.await(2)
		for range 20 {
			_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
			require.NoError(t, err)
		}
		require.Positive(t, a.Generations.Load(), "it was asked first at times")
		p.Kill()
		r.await(1)
		for events = range 2 {
			got, err := all(r.inference().Generate(r.patient(), ask("m", 1)))
			require.Len(t, got, events)
			require.Equal(t, "MODEL_OUT_OF_SERVICE", rpc.Reason(err))
		}
		for _, m := range r.fleet.Snapshot().Members {
			require.Eventually(t, func() bool { return m.Load.InFlight() == 0 && m.Load.Tokens() == 0 }, hang, time.Millisecond)
		}
	})
}

func TestOKWithoutFinishedIsALostWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			return stream.Send(workertest.Started("w1"))
		}
		r, _ := one(t, w)
		_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	})
}

func TestFinishedOutputsAreNotAwaited(t *testing.T) {
	for name, tc := range map[string]struct {
		ended int
		ends  []uint32 // outputs that end now
		want  string
	}{
		"one of three ended before, two end now":   {ended: 1, ends: []uint32{1, 2}},
		"all ended before":                         {ended: 3},
		"one ended before, one is missing":         {ended: 1, ends: []uint32{1}, want: reason.WorkerLost},
		"none ended before, and one does not end":  {ends: []uint32{0, 1}, want: reason.WorkerLost},
		"one ended before, and ends again":         {ended: 1, ends: []uint32{0, 1}, want: reason.WorkerLost},
		"one ends that was not asked for":          {ended: 2, ends: []uint32{3}, want: reason.WorkerLost},
		"none ended before, all end now":           {ends: []uint32{2, 1, 0}},
		"two ended before, and nothing comes back": {ended: 2, want: reason.WorkerLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := workertest.New("w1", "i1", "m")
				w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
					started := workertest.Started("w1")
					started.GetStarted().ResumedTokens = []uint32{0, 0, 0}
					err := stream.Send(started)
					for _, output := range tc.ends {
						finished := workertest.Finished(0)
						finished.GetFinished().OutputIndex = output
						err = errors.Join(err, stream.Send(finished))
					}
					return err
				}
				r, _ := one(t, w)
				in := ask("m", 1)
				in.Sampling = &pb.Sampling{NumSequences: proto.Int32(3)}
				for i := range uint32(3) {
					in.Resume = append(in.Resume, &pb.Resume{OutputIndex: i, Finished: int(i) < tc.ended})
				}
				_, err := all(r.inference().Generate(r.within(), in))
				require.Equal(t, tc.want, rpc.Reason(err))
			})
		})
	}
}

func TestStoppingWorkerFinishesItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		finish := make(chan struct{})
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			if err := stream.Send(workertest.Started("w1")); err != nil {
				return err
			}
			<-finish
			return stream.Send(workertest.Finished(0))
		}
		r, p := one(t, w)
		stream, err := r.inference().Generate(r.within(), ask("m", 1))
		require.NoError(t, err)
		read(t, stream, 1)
		var stopped sync.WaitGroup
		stopped.Go(p.Stop)
		require.Eventually(t, func() bool {
			return r.fleet.Snapshot().Members[0].Report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING
		}, hang, time.Millisecond)
		close(finish)
		_, err = all(stream, nil)
		require.NoError(t, err)
		stopped.Wait()
	})
}

func TestStoppingSchedulerFinishesItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i1", "m")
		finish := make(chan struct{})
		w.OnGenerate = func(_ *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			if err := stream.Send(workertest.Started("w1")); err != nil {
				return err
			}
			<-finish
			return stream.Send(workertest.Finished(0))
		}
		r, _ := one(t, w)
		stream, err := r.inference().Generate(r.within(), ask("m", 1))
		require.NoError(t, err)
		read(t, stream, 1)
		watch, err := r.operators().WatchFleet(r.within(), &pb.WatchFleetRequest{})
		require.NoError(t, err)
		_, err = watch.Recv()
		require.NoError(t, err)
		time.AfterFunc(50*time.Millisecond, func() { close(finish) })
		r.stop()
		_, err = all(stream, nil)
		require.NoError(t, err)
		_, err = all(watch, nil)
		require.Equal(t, reason.Stopping, rpc.Reason(err))
	})
}
