package vectors_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
	"github.com/millrace/millrace/services/scheduler/internal/vectors"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang bounds waits for events that come much sooner.
const hang = 30 * time.Second

// rig is a scheduler over workers in memory: "w1" at "w1:1" and so on, each with vectors.
type rig struct {
	*testing.T
	net       *workertest.Net
	fleet     *fleet.Fleet
	vectors   *vectors.Vectors
	workers   map[string]*workertest.Worker
	processes map[string]*workertest.Process
	conn      *grpc.ClientConn
	pb.VectorServiceClient
}

// newRig starts workers that change has prepared, and a scheduler over them.
func newRig(t *testing.T, cfg vectors.Config, ids []string, change func(id string, w *workertest.Worker)) *rig {
	t.Helper()
	rpctest.NoLeaks(t)
	r := &rig{T: t, net: workertest.NewNet(), workers: map[string]*workertest.Worker{}, processes: map[string]*workertest.Process{}}
	var addresses []string
	for _, id := range ids {
		r.start(id, "i", change)
		addresses = append(addresses, id+":1")
	}
	logger := rpctest.Logger(t)
	var err error
	r.fleet, err = fleet.New(fleet.Config{Workers: addresses, Dial: r.net.Dial, Interval: 20 * time.Millisecond,
		Stale: time.Second, BackoffMax: 50 * time.Millisecond, Grace: hang,
		Urgent: vectors.Urgent}, logger)
	require.NoError(t, err)
	if cfg.FailoverWait == 0 {
		cfg.FailoverWait = 200 * time.Millisecond
	}
	r.vectors = vectors.New(r.fleet, cfg, logger)
	s := rpc.NewServer(rpc.ServerConfig{Domain: rpcstatus.Domain, DrainTimeout: 5 * time.Second}, logger)
	r.vectors.Register(s)
	following, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.fleet.Run(following) }()
	t.Cleanup(func() { cancel(); <-done })
	t.Cleanup(r.vectors.Close)
	lis := rpctest.Listener(t)
	rpctest.Serve(t, s, lis)
	r.conn = rpctest.Dial(t, lis)
	r.VectorServiceClient = pb.NewVectorServiceClient(r.conn)
	r.await(len(ids))
	return r
}

// start starts a worker, or starts it again after it was killed.
func (r *rig) start(id, incarnation string, change func(id string, w *workertest.Worker)) {
	r.Helper()
	w := workertest.New(id, incarnation).WithVectors()
	if change != nil {
		change(id, w)
	}
	r.workers[id], r.processes[id] = w, r.net.Start(r.T, id+":1", w)
}

// await waits until the scheduler sees n connected workers.
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

// idle waits until no call is under way, at the scheduler and at its workers.
func (r *rig) idle() {
	r.Helper()
	for id, w := range r.workers {
		require.Eventually(r, func() bool { return w.Training.Load() == 0 }, hang, time.Millisecond, id)
	}
	require.Eventually(r, func() bool {
		calls, held := r.vectors.UnderWay()
		for _, m := range r.fleet.Snapshot().Members {
			if !m.Load.Idle() || r.vectors.UnderWayOn(&m) != 0 || r.vectors.BytesOn(&m) != 0 {
				return false
			}
		}
		return calls == 0 && held == 0
	}, hang, time.Millisecond)
}

func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.Cleanup(cancel)
	return ctx
}

// patient is a context without a deadline, with the hang guard.
func (r *rig) patient() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	guard := time.AfterFunc(hang, cancel)
	r.Cleanup(func() { guard.Stop(); cancel() })
	return ctx
}

// serving gives every worker codebook k.
func serving(_ string, w *workertest.Worker) { w.WithVectors("k") }

// rows are n bytes that differ from each other, and from those of another seed.
func rows(n int, seed byte) []byte {
	out := bytes.Repeat([]byte{seed}, n)
	for i := range out {
		out[i] += byte(i * 7)
	}
	return out
}

// refused requires a status.
func refused(t *testing.T, err error, domain string, code codes.Code, reason string) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	require.Equal(t, reason, rpc.Reason(err), "%v", err)
	require.Equal(t, domain, rpc.Domain(err), "%v", err)
}
