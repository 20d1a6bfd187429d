package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/monitor/monitortest"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
)

// requireTimedOut requires that a server of a domain refused a call because of its queue time.
func requireTimedOut(t *testing.T, err error, domain, most string) {
	t.Helper()
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Equal(t, reason.QueueTimeout, rpc.Reason(err), "%v", err)
	require.Equal(t, domain, rpc.Domain(err))
	require.Equal(t, most, rpc.Info(err).GetMetadata()["max_queue_time_ms"])
	require.Positive(t, rpc.RetryAfter(err))
}

// lone is a worker with a single slot.
func lone(t *testing.T, args ...string) *server {
	t.Helper()
	return startWorker(t, "w1", append(append([]string{"--max-sequences", "1"}, paced...), args...)...)
}

// atLast starts a call without a deadline, and reads it when it has its slot.
func atLast(t *testing.T, on *server, in *pb.GenerateRequest) <-chan outcome {
	t.Helper()
	ctx, out := undated(t), make(chan outcome, 1)
	go func() { out <- generate(ctx, on.infer, in) }()
	return out
}

func TestSchedulerRefusesByQueueTime(t *testing.T) {
	// Calls that run are not affected.
	t.Parallel()
	w := lone(t, "--max-queue-time", "0")
	address := freeAddress(t)
	s := startScheduler(t, []*server{w}, "--max-queue-time", "700ms", "--metrics-listen", address)
	s.untilServed(t, long, 1)
	runs := beginAll(t, s, 1, endless)[0]
	behind := atLast(t, s, ask(long, 3)) // waits at the worker, whose only slot is taken
	w.untilLoad(t, "one waits there", func(load *pb.LoadStatus) bool { return load.GetWaiting() == 1 })

	requireTimedOut(t, generate(undated(t), s.infer, ask(long, 3)).err, rpc.SchedulerDomain, "700")
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Equal(t, codes.DeadlineExceeded, status.Code(generate(soon, s.infer, ask(long, 3)).err), "a sooner deadline is its own")

	for n := len(runs.ids); len(runs.ids) < n+100; { // more than was in flight
		require.NoError(t, runs.read())
	}
	runs.leave()
	o := <-behind
	require.NoError(t, o.err)
	require.Len(t, o.ids, 3)
	good(t, s, long)
	w.untilIdle(t)
	untilPage(t, address, "/metrics", "the refusal is counted", func(_ int, body string) bool {
		got := monitortest.Series(t, body)
		return got["millrace_scheduler_shed_requests_total cause=timeout model="+long] == 1 &&
			got["millrace_refused_calls_total origin=own reason=QUEUE_TIMEOUT"] == 1
	})
}

func TestWorkerRefusesByQueueTime(t *testing.T) {
	// Calls that run are not affected.
	t.Parallel()
	w := lone(t, "--max-queue-time", "700ms")
	s := startScheduler(t, []*server{w}, "--max-queue-time", "0")
	s.untilServed(t, long, 1)
	runs := beginAll(t, s, 1, endless)[0]
	for len(runs.ids) < 2 {
		require.NoError(t, runs.read())
	}
	requireTimedOut(t, generate(undated(t), s.infer, ask(long, 3)).err, rpc.WorkerDomain, "700") // the worker's error, unchanged

	// The resume of a stream that has begun may wait without limit.
	rest := ask(long, 4)
	rest.Resume = []*pb.Resume{{TokenIds: runs.ids[:2]}}
	resumed := atLast(t, w, rest)
	w.untilLoad(t, "it waits", func(load *pb.LoadStatus) bool { return load.GetWaiting() == 1 })
	requireTimedOut(t, generate(undated(t), w.infer, ask(long, 3)).err, rpc.WorkerDomain, "700")

	for n := len(runs.ids); len(runs.ids) < n+100; { // more than was in flight
		require.NoError(t, runs.read())
	}
	runs.leave()
	o := <-resumed
	require.NoError(t, o.err)
	require.Len(t, o.ids, 2)
	w.untilIdle(t)
	good(t, s, long)
}
