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
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// rider is a client that resumes on the next scheduler when its own is lost. Clients need no more
// than this.
type rider struct {
	schedulers []pb.InferenceServiceClient
	began      []atomic.Int64 // streams with a token, by scheduler
	resumed    atomic.Int64   // streams resumed after a token
}

// ride runs a request of one continuation to its end, first on the given scheduler.
func (r *rider) ride(ctx context.Context, at int, in *pb.GenerateRequest) outcome {
	whole := outcome{}
	for deadline := time.Now().Add(hang); ; at++ {
		rest := proto.CloneOf(in)
		if len(whole.ids) > 0 {
			r.resumed.Add(1)
			rest.Resume = []*pb.Resume{{TokenIds: whole.ids, TextBytes: ptr(uint64(len(whole.text)))}}
			rest.ExpectClassId = &whole.started.ClassId
		}
		part := r.attempt(ctx, at%len(r.schedulers), rest)
		whole.ids, whole.text = append(whole.ids, part.ids...), whole.text+part.text
		whole.logprobs, whole.finished = append(whole.logprobs, part.logprobs...), part.finished
		if part.started != nil {
			whole.started = part.started
		}
		if whole.err = part.err; status.Code(part.err) != codes.Unavailable || time.Now().After(deadline) {
			return whole
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// attempt makes one call and returns its events, also if it fails.
func (r *rider) attempt(ctx context.Context, at int, in *pb.GenerateRequest) outcome {
	stream, err := r.schedulers[at].Generate(ctx, in)
	if err != nil {
		return outcome{err: err}
	}
	c := &call{stream: stream}
	for len(c.ids) == 0 && c.finished == nil {
		if err := c.read(); err != nil {
			c.err = err
			return c.outcome
		}
	}
	if c.finished == nil {
		r.began[at].Add(1)
	}
	return c.end()
}

func TestRollingRestartUnderLoad(t *testing.T) {
	// No stream may fail while every worker and scheduler is restarted.
	t.Parallel()
	workers := []*server{startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)}
	// Short, so that streams are cut: a client that resumes must not depend on a long drain
	// timeout.
	schedulers := []*server{startScheduler(t, workers, "--drain-timeout", "100ms"), startScheduler(t, workers, "--drain-timeout", "100ms")}
	r := &rider{began: make([]atomic.Int64, len(schedulers))}
	for _, s := range schedulers {
		s.untilServed(t, long, 2)
		r.schedulers = append(r.schedulers, s.infer)
	}
	in := story(long, 400, 0)
	want := undisturbed(t, workers[0], []*pb.GenerateRequest{in})[0]

	ctx, stop := context.WithCancel(t.Context()) // the load runs until the last restart
	defer stop()
	var load sync.WaitGroup
	outcomes := make(chan outcome, 10_000)
	for i := range 8 {
		load.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				outcomes <- r.ride(context.WithoutCancel(ctx), n, in)
			}
		})
	}
	handed := func() int { return schedulers[0].resumes() + schedulers[1].resumes() }
	for n := 0; n < len(workers) || handed() == 0; n++ { // until the logs show that a stream was handed over
		i := n % len(workers)
		workers[i].untilLoad(t, "it has streams", func(load *pb.LoadStatus) bool { return load.GetRunning() > 0 })
		stopped := time.Now()
		workers[i].terminate()
		require.Equal(t, 0, workers[i].exit(t))
		t.Logf("worker %d ended %v after its signal, %d streams so far", i, time.Since(stopped), len(outcomes))
		workers[i] = workers[i].again(t)
		for _, s := range schedulers {
			s.untilServed(t, long, 2)
		}
	}
	for i, s := range schedulers {
		for before := r.resumed.Load(); r.resumed.Load() == before; { // until it has cut a stream
			began := r.began[i].Load() // clients return to a restarted scheduler after a moment
			require.Eventually(t, func() bool { return r.began[i].Load() > began }, hang, time.Millisecond, "streams of scheduler %d", i)
			stopped := time.Now()
			s.terminate()
			require.Equal(t, 0, s.exit(t))
			t.Logf("scheduler %d ended %v after its signal, %d streams so far", i, time.Since(stopped), len(outcomes))
			schedulers[i] = s.again(t)
			s = schedulers[i]
			s.untilServed(t, long, 2)
		}
	}
	stop()
	load.Wait()
	close(outcomes)
	n := 0
	for o := range outcomes {
		requireSame(t, want, o, fmt.Sprint("stream ", n))
		n++
	}
	t.Logf("%d streams, %d resumes by clients", n, r.resumed.Load())
}
