package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

func TestADrainedWorkerGetsNothingNewUntilItIsUndrained(t *testing.T) {
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
}

func TestADrainThatCannotBeIsRefused(t *testing.T) {
	w := workertest.New("w1", "i", "m")
	w.OnDrain = func() error {
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
		t.Run(name, func(t *testing.T) {
			_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: tc.id})
			require.Equal(t, tc.code, status.Code(err), "%v", err)
			require.Equal(t, tc.reason, rpc.Reason(err))
			require.Equal(t, tc.domain, rpc.Domain(err))
			if tc.code != codes.Unimplemented {
				_, err = r.operators().UndrainWorker(r.within(), &pb.UndrainWorkerRequest{WorkerId: tc.id})
				require.Equal(t, tc.reason, rpc.Reason(err))
			}
		})
	}
	p.Kill()
	r.await(0)
	_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1"})
	require.Equal(t, reason.NoWorker, rpc.Reason(err))
}

func TestAWorkerThatFreezesWhileItIsToldToDrainIsLost(t *testing.T) {
	w := workertest.New("w1", "i", "m")
	var p *workertest.Process
	w.OnDrain = func() error {
		p.Freeze()
		return nil
	}
	r, process := one(t, w)
	p = process
	_, err := r.operators().DrainWorker(r.within(), &pb.DrainWorkerRequest{WorkerId: "w1"})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.Equal(t, reason.WorkerLost, rpc.Reason(err))
}
