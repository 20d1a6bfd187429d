package server_test

import (
	"context"
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

func TestDrainedWorkerGetsNoNewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		a, b := workertest.New("w1", "i", "m"), workertest.New("w2", "i", "m")
		n.Start(t, "a:1", a)
		n.Start(t, "b:1", b)
		r, other := newRig(t, n, "a:1", "b:1"), newRig(t, n, "a:1", "b:1")
		r.await(2)
		other.await(2)
		drained := func(to *rig) bool {
			return to.fleet.Snapshot().Members[0].Report.GetState() == pb.WorkerState_WORKER_STATE_DRAINING
		}
		for range 2 { // idempotent
			_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1"})
			require.NoError(t, err)
			require.True(t, drained(r), "this scheduler knows it when it answers")
		}
		for range 20 {
			_, err := all(r.inference().Generate(r.within(), ask("m", 1)))
			require.NoError(t, err)
		}
		require.Zero(t, a.Generations.Load())
		require.Eventually(t, func() bool { return drained(other) }, hang, time.Millisecond, "so does every other")

		_, err := other.operators().UndrainWorker(other.within(), &pb.UndrainWorkerRequest{WorkerId: "w1"})
		require.NoError(t, err)
		require.False(t, drained(other))
		require.Eventually(t, func() bool {
			_, err := all(other.inference().Generate(other.within(), ask("m", 1)))
			require.NoError(t, err)
			return a.Generations.Load() > 0
		}, hang, time.Millisecond)
	})
}

func TestInvalidDrainIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i", "m")
		w.OnDrain = func(*pb.DrainRequest) error {
			return status.Error(codes.Unimplemented, "method Drain not implemented")
		}
		r, p := one(t, w)
		for name, tc := range map[string]struct {
			id     string
			code   codes.Code
			reason string
			domain string
		}{
			"no id":                  {"", codes.InvalidArgument, reason.InvalidArgument, rpc.SchedulerDomain},
			"an id that nobody has":  {"w9", codes.NotFound, reason.UnknownWorker, rpc.SchedulerDomain},
			"an address is no id":    {"a:1", codes.NotFound, reason.UnknownWorker, rpc.SchedulerDomain},
			"a worker older than it": {"w1", codes.Unimplemented, reason.NotBuilt, rpc.SchedulerDomain},
		} {
			t.Log(name) // a bubble has no subtests
			_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: tc.id})
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.Equal(t, tc.domain, rpc.Domain(err))
			if tc.code != codes.Unimplemented {
				_, err = r.operators().UndrainWorker(r.within(), &pb.UndrainWorkerRequest{WorkerId: tc.id})
				require.Equal(t, tc.reason, rpc.Reason(err))
			}
		}
		p.Kill()
		r.await(0)
		_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1"})
		require.Equal(t, reason.NoWorker, rpc.Reason(err))
	})
}

func TestDrainOfAFrozenWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := workertest.New("w1", "i", "m")
		var p *workertest.Process
		w.OnDrain = func(*pb.DrainRequest) error {
			p.Freeze()
			return nil
		}
		r, process := one(t, w)
		p = process
		_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1"})
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Equal(t, reason.WorkerLost, rpc.Reason(err))
	})
}

// The worker ends the streams that are left at the deadline of a drain. A stream that found no slot
// elsewhere until then waits for one.
func TestDrainDeadlineMovesStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		bound, told := make(chan struct{}), make(chan time.Duration, 1)
		leaves := serving("w1", func(in *pb.GenerateRequest, stream grpc.ServerStreamingServer[pb.GenerateResponse]) error {
			if err := (workertest.Answer{Worker: "w1", Events: 4}).Generate(in, stream); err != nil {
				return err
			}
			<-bound
			return workertest.Refusal(codes.Unavailable, reason.WorkerDraining, "its time is over")
		})
		leaves.OnDrain = func(in *pb.DrainRequest) error {
			told <- in.GetTimeout().AsDuration()
			return nil
		}
		takes := serving("w2", workertest.Whole("w2").Generate)
		become(takes, pb.WorkerState_WORKER_STATE_NOT_READY)
		n.Start(t, "a:1", leaves)
		n.Start(t, "b:1", takes)
		r := newRig(t, n, "a:1", "b:1")
		r.await(2)
		r.serve(1)
		in := ask("m", 9)
		want, err := workertest.Whole("w1").Of(in)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(r.patient(), hang) // longer than the rigs wait
		defer cancel()
		stream, err := r.inference().Generate(ctx, in)
		require.NoError(t, err)
		read(t, stream, 4)
		_, err = r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1", Timeout: durationpb.New(time.Minute)})
		require.NoError(t, err)
		require.Equal(t, time.Minute, <-told)
		close(bound)
		require.Eventually(t, func() bool { return leaves.Running.Load() == 0 }, hang, time.Millisecond)
		become(takes, pb.WorkerState_WORKER_STATE_READY)
		rest, err := all(stream, nil)
		require.NoError(t, err)
		requireEvents(t, want[4:], rest)
	})
}
