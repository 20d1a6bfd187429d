package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// bounded is far above a drain timeout of 1 s with its grace, and far below the default drain
// timeout.
const bounded = 20 * time.Second

// finite is a request that takes a second and a half at 2 ms a step.
func finite() *pb.GenerateRequest { return ask(long, 750) }

func requireFinished(t *testing.T, calls []*call) {
	t.Helper()
	for _, c := range calls {
		o := c.end()
		require.NoError(t, o.err, "a running stream finishes")
		require.Len(t, o.ids, 750)
	}
}

func TestStoppingWorkerFinishesStreams(t *testing.T) {
	// It exits with 0.
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	direct, relayed := beginAll(t, w, 4, finite), beginAll(t, s, 4, finite)
	flipped := w.readiness(t)
	w.terminate()
	flipped()
	s.until(t, "the worker takes no requests", func(fleet []*pb.FleetWorker) bool {
		return !fleet[0].GetConnected() || fleet[0].GetReport().GetState() == pb.WorkerState_WORKER_STATE_DRAINING
	})
	require.Equal(t, noWorker, faultOf(generate(within(t), s.infer, ask(long, 3)).err))
	requireFinished(t, direct)
	requireFinished(t, relayed)
	require.Equal(t, 0, w.exit(t))
}

func TestStoppingSchedulerFinishesStreams(t *testing.T) {
	// It exits with 0.
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	relayed := beginAll(t, s, 4, finite)
	flipped := s.readiness(t)
	s.terminate()
	flipped()
	requireFinished(t, relayed)
	require.Equal(t, 0, s.exit(t))
	good(t, w, long)
	w.untilIdle(t)
}

func TestTheDrainTimeoutBoundsAWorkersEnd(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", append([]string{"--drain-timeout", "1s"}, paced...)...)
	s := startScheduler(t, []*server{w}, impatient...)
	s.untilServed(t, long, 1)
	direct, relayed := beginAll(t, w, 2, endless), beginAll(t, s, 2, endless)
	told := time.Now()
	w.terminate()
	requireLost(t, relayed)
	for _, c := range direct {
		require.Equal(t, codes.Unavailable, status.Code(c.end().err), "%v", c.err)
	}
	require.Equal(t, 0, w.exit(t))
	t.Logf("ended %v after SIGTERM with a drain timeout of 1s", time.Since(told))
	require.Less(t, time.Since(told), bounded)
	require.GreaterOrEqual(t, time.Since(told), time.Second, "running calls get the time they were promised")
}

func TestTheDrainTimeoutBoundsASchedulersEnd(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w}, "--drain-timeout", "1s")
	s.untilServed(t, long, 1)
	relayed := beginAll(t, s, 2, endless)
	told := time.Now()
	s.terminate()
	for _, c := range relayed {
		require.Equal(t, codes.Unavailable, status.Code(c.end().err), "%v", c.err)
	}
	require.Equal(t, 0, s.exit(t))
	t.Logf("ended %v after SIGTERM with a drain timeout of 1s", time.Since(told))
	require.Less(t, time.Since(told), bounded)
	require.GreaterOrEqual(t, time.Since(told), time.Second, "running calls get the time they were promised")
	w.untilIdle(t)
}

func TestASecondSignalEndsAProcessAtOnce(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w})
	s.untilServed(t, long, 1)
	for _, p := range []*server{s, w} { // the scheduler first, because it needs its worker
		beginAll(t, p, 1, endless)
		flipped := p.readiness(t)
		told := time.Now()
		p.terminate()
		flipped()
		for p.alive() { // the second signal counts only after the first was handled
			p.terminate()
			time.Sleep(50 * time.Millisecond)
			require.Less(t, time.Since(told), bounded, "%s waits for its stream", p.name)
		}
		t.Logf("%s ended %v after the first of two signals", p.name, time.Since(told))
		require.NotEqual(t, 0, p.exit(t), "cut off calls are no clean end")
	}
}
