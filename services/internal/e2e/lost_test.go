package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc"
)

// noticed is the limit for the streams of a lost worker to end on a busy machine. Without a broken
// connection they would end by pings or by the silence limit of a patient scheduler, which take 30
// s or more.
const noticed = 20 * time.Second

// impatient is a scheduler whose streams wait only briefly for another worker.
var impatient = []string{"--failover-wait", "100ms"}

// requireLost reads calls to their ends, which must report a lost worker.
func requireLost(t *testing.T, calls []*call) time.Time {
	t.Helper()
	for _, c := range calls {
		o := c.end()
		require.Equal(t, workerLost, faultOf(o.err), "%v", o.err)
		require.Equal(t, o.started.GetWorkerId(), rpc.Info(o.err).GetMetadata()["worker_id"])
		require.Contains(t, status.Convert(o.err).Message(), o.started.GetWorkerId())
	}
	return time.Now()
}

func TestKilledLoneWorkerServesAgain(t *testing.T) {
	// Its streams end with an error, and the next request is served after its restart.
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	s := startScheduler(t, []*server{w}, impatient...)
	s.untilServed(t, long, 1)
	calls := beginAll(t, s, 8, endless)
	killed := time.Now()
	w.kill()
	took := requireLost(t, calls).Sub(killed)
	t.Logf("%d streams ended %v after kill -9", len(calls), took)
	require.Less(t, took, noticed)
	s.until(t, "the worker is gone", func(fleet []*pb.FleetWorker) bool { return connected(fleet) == 0 })
	require.Equal(t, noWorker, faultOf(generate(within(t), s.infer, ask(long, 3)).err))
	require.True(t, s.serving(t), "a scheduler without workers serves, to return errors")

	back := w.again(t)
	ready := time.Now()
	var o outcome
	for {
		if o = generate(within(t), s.infer, ask(long, 3)); o.err == nil {
			break
		}
		require.Equal(t, noWorker, faultOf(o.err), "%v", o.err)
		require.Less(t, time.Since(ready), hang)
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("served %v after the worker was back", time.Since(ready))
	require.Equal(t, "w1", o.started.GetWorkerId())
	require.NotEqual(t, calls[0].started.GetIncarnation(), o.started.GetIncarnation())
	require.Equal(t, calls[0].ids[:1], o.ids[:1], "the same request gives the same tokens after a restart")
	back.untilIdle(t)
}

func TestKilledWorkerFailsOverAtOnce(t *testing.T) {
	// When one of two workers is killed, its streams and later requests go to the other one.
	t.Parallel()
	// Long steps, so that no stream has filled its client's window when the last one begins: a
	// paused stream uses fewer resources.
	steps := []string{"--device", "sim:step=10ms,prefill=0s,decode=0s", "--load", long}
	dies, lives := startWorker(t, "dies", steps...), startWorker(t, "lives", steps...)
	s := startScheduler(t, []*server{dies, lives})
	s.untilServed(t, long, 2)
	calls, begun := beginAll(t, s, 8, endless), 0
	for _, c := range calls {
		if c.started.GetWorkerId() == "dies" {
			begun++
		}
	}
	require.Equal(t, 4, begun, "equal workers share equal requests")
	killed := time.Now()
	dies.kill()
	for range 20 {
		require.Equal(t, "lives", good(t, s, long).started.GetWorkerId())
	}
	t.Logf("20 requests served %v after kill -9", time.Since(killed))
	for _, c := range calls {
		for had := len(c.ids); len(c.ids) < had+200; {
			require.NoError(t, c.read(), "every stream continues")
		}
		n := min(len(c.ids), len(calls[0].ids))
		require.Equal(t, calls[0].ids[:n], c.ids[:n], "equal requests have equal tokens, broken or not")
	}
	dies.again(t)
	s.untilServed(t, long, 2)
}

func TestAFrozenWorkerIsNoticedAndComesBack(t *testing.T) {
	t.Parallel()
	w := startWorker(t, "w1", paced...)
	// Longer than a busy machine stops the worker: before the test freezes it there is no other
	// worker.
	s := startScheduler(t, []*server{w}, slices.Concat(impatient, []string{"--stale", "8s"})...)
	s.untilServed(t, long, 1)
	calls := beginAll(t, s, 8, endless)
	frozen := time.Now()
	w.freeze()
	took := requireLost(t, calls).Sub(frozen)
	t.Logf("%d streams ended %v after SIGSTOP", len(calls), took)
	require.Less(t, took, noticed)
	s.until(t, "the worker is gone", func(fleet []*pb.FleetWorker) bool { return connected(fleet) == 0 })
	require.Equal(t, noWorker, faultOf(generate(within(t), s.infer, ask(long, 3)).err))
	w.thaw()
	s.untilServed(t, long, 1)
	require.Equal(t, calls[0].started.GetIncarnation(), good(t, s, long).started.GetIncarnation(), "it is the same process")
	w.untilIdle(t)
}
