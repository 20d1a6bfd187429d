package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// callers send requests until end, and count the answers of each worker.
type callers struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
	began   sync.Map       // worker_id of the first token to *atomic.Int64
	ended   []atomic.Int64 // by caller; at most as many as began

	mu     sync.Mutex
	failed []error // guarded by mu
}

// callersOn starts n callers, each of which sends one request after another.
func callersOn(t *testing.T, n int, on ...*server) *callers {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context()) // they run until their test ends
	l := &callers{cancel: cancel, ended: make([]atomic.Int64, n)}
	for i := range n {
		l.running.Go(func() {
			for ctx.Err() == nil {
				const tokens = 100
				o := generate(ctx, on[i%len(on)].infer, ask(long, tokens))
				switch {
				case ctx.Err() != nil:
					return
				case o.err == nil && len(o.ids) != tokens:
					o.err = fmt.Errorf("%d tokens came", len(o.ids))
					fallthrough
				case o.err != nil:
					l.mu.Lock()
					l.failed = append(l.failed, o.err)
					l.mu.Unlock()
					return
				}
				l.of(o.started.GetWorkerId()).Add(1)
				l.ended[i].Add(1)
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

// of returns the number of requests that a worker has answered.
func (l *callers) of(worker string) *atomic.Int64 {
	n, _ := l.began.LoadOrStore(worker, &atomic.Int64{})
	return n.(*atomic.Int64)
}

// end stops the callers and returns their errors.
func (l *callers) end() []error {
	l.cancel()
	l.running.Wait()
	return l.failed
}

// more waits until a worker has answered more requests.
func (l *callers) more(t *testing.T, worker string) {
	t.Helper()
	had := l.of(worker).Load()
	require.Eventually(t, func() bool { return l.of(worker).Load() >= had+5 }, hang, time.Millisecond, "requests on %s", worker)
}

// cycle waits until every caller has ended its current request, so that later counts are of later
// requests.
func (l *callers) cycle(t *testing.T) {
	t.Helper()
	for i := range l.ended {
		had := l.ended[i].Load()
		require.Eventually(t, func() bool { return l.ended[i].Load() > had }, hang, time.Millisecond, "caller %d", i)
	}
}

func TestDrainUnderLoad(t *testing.T) {
	// No request may fail during a drain, and a drain can be undone.
	t.Parallel()
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	s1, s2 := startScheduler(t, []*server{w1, w2}), startScheduler(t, []*server{w1, w2})
	for _, s := range []*server{s1, s2} {
		s.untilServed(t, long, 2)
	}
	running := callersOn(t, 8, s1, s2)
	for _, w := range []string{"w1", "w2"} {
		running.more(t, w)
	}
	for range 2 {
		_, err := s1.fleet.DrainWorker(within(t), &pb.DrainWorkerRequest{WorkerId: "w1"})
		require.NoError(t, err)
		require.False(t, w1.serving(t), "its readiness has flipped by now")
		w1.untilIdle(t)
		o := generate(within(t), w1.infer, ask(long, 3))
		require.Equal(t, codes.Unavailable, status.Code(o.err), "%v", o.err)
		require.Equal(t, reason.WorkerDraining, rpc.Reason(o.err))
		running.more(t, "w2")
		s2.until(t, "the other scheduler sees it", func(fleet []*pb.FleetWorker) bool {
			for _, w := range fleet {
				if w.GetReport().GetWorkerId() == "w1" {
					return w.GetConnected() && w.GetReport().GetState() == pb.WorkerState_WORKER_STATE_DRAINING
				}
			}
			return false
		})
		running.cycle(t) // a resumed request counts for its first worker
		had := running.of("w1").Load()
		running.more(t, "w2")
		require.Equal(t, had, running.of("w1").Load(), "nothing goes to a worker that drains")

		_, err = s2.fleet.UndrainWorker(within(t), &pb.UndrainWorkerRequest{WorkerId: "w1"})
		require.NoError(t, err)
		require.True(t, w1.serving(t))
		running.more(t, "w1")
	}
	require.Empty(t, running.end())
}

func TestWorkerStopUnderLoadFailsNoCall(t *testing.T) {
	t.Parallel()
	w1, w2 := startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)
	s := startScheduler(t, []*server{w1, w2})
	s.untilServed(t, long, 2)
	running := callersOn(t, 6, s)
	running.more(t, "w1")
	w1.terminate()
	require.Equal(t, 0, w1.exit(t))
	running.more(t, "w2")
	w1.again(t)
	s.untilServed(t, long, 2)
	running.more(t, "w1")
	require.Empty(t, running.end())
}

func TestADrainIsForgottenWhenTheProcessEnds(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	_, err := s.fleet.DrainWorker(within(t), &pb.DrainWorkerRequest{WorkerId: "w1"})
	require.NoError(t, err)
	require.Equal(t, noWorker, faultOf(generate(within(t), s.infer, ask(long, 3)).err))
	w.terminate()
	require.Equal(t, 0, w.exit(t))
	w.again(t)
	s.untilServed(t, long, 1)
	good(t, s, long)
}
