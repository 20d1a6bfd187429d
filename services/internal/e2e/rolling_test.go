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

// rider is a client that goes to the next scheduler with what it has when the one that it asks is gone. It is the whole of what
// clients need to do.
type rider struct {
	schedulers []pb.InferenceServiceClient
	began      []atomic.Int64 // streams that have had a token, by scheduler
	resumed    atomic.Int64   // streams that went on behind a token
}

// ride runs a request of one continuation to its end; the first try is at a scheduler of the caller's choice.
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

// attempt is one call at a scheduler, with all that came of it also when it fails.
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

func TestARollingRestartOfEverythingUnderLoadFailsNobody(t *testing.T) {
	t.Parallel()
	workers := []*server{startWorker(t, "w1", paced...), startWorker(t, "w2", paced...)}
	// So short that streams are cut: a client that resumes must not need the patience of who restarts.
	schedulers := []*server{startScheduler(t, workers, "--drain-timeout", "100ms"), startScheduler(t, workers, "--drain-timeout", "100ms")}
	r := &rider{began: make([]atomic.Int64, len(schedulers))}
	for _, s := range schedulers {
		s.untilServed(t, long, 2)
		r.schedulers = append(r.schedulers, s.infer)
	}
	in := story(long, 400, 0)
	want := undisturbed(t, workers[0], []*pb.GenerateRequest{in})[0]

	ctx, stop := context.WithCancel(t.Context()) // the load lasts as long as the restarts, however slow the machine is
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
	for n := 0; n < len(workers) || handed() == 0; n++ { // until a stream was handed over, as the logs of those that ended have it
		i := n % len(workers)
		workers[i].untilLoad(t, "it has streams", func(load *pb.LoadStatus) bool { return load.GetRunning() > 0 })
		told := time.Now()
		workers[i].terminate()
		require.Equal(t, 0, workers[i].exit(t))
		t.Logf("worker %d ended %v after it was told to, %d streams so far", i, time.Since(told), len(outcomes))
		workers[i] = workers[i].again(t)
		for _, s := range schedulers {
			s.untilServed(t, long, 2)
		}
	}
	for i, s := range schedulers {
		for before := r.resumed.Load(); r.resumed.Load() == before; { // until it has cut somebody off
			began := r.began[i].Load() // clients come back to one that was away a moment after it is there again
			require.Eventually(t, func() bool { return r.began[i].Load() > began }, hang, time.Millisecond, "streams of scheduler %d", i)
			told := time.Now()
			s.terminate()
			require.Equal(t, 0, s.exit(t))
			t.Logf("scheduler %d ended %v after it was told to, %d streams so far", i, time.Since(told), len(outcomes))
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
