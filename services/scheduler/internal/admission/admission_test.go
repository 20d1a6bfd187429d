package admission_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

func TestPlaceKeepsBoundsUnderManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		const workers, places, most, callers = 3, 8, 9, 1000
		r := newRig(t, workers, places, admission.MaxQueue(callers))
		var placed atomic.Int64
		together(callers, func(int) {
			l, err := r.Place(r.within(), one("", 0))
			if err != nil {
				t.Error(err)
				return
			}
			for n := range workers {
				if has := r.sequences(n); has > most {
					t.Errorf("worker %d has %d sequences", n, has)
				}
			}
			placed.Add(1)
			l.Progress(10)
			runtime.Gosched()
			l.End()
		})
		require.EqualValues(t, callers, placed.Load())
		for n := range workers {
			require.Zero(t, r.sequences(n))
			require.Zero(t, r.fleet.Snapshot().Members[n].Load.Tokens())
		}
		s := r.stats()
		require.EqualValues(t, callers, s.Placed)
		require.Zero(t, s.Waiting)
		require.Zero(t, s.Shed+s.Left)
	})
}

func TestCancelledCallLeavesTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 1)
		first, second := r.place(one("", 0)), r.place(one("", 0))
		cause := errors.New("hung up")
		ctx, cancel := context.WithCancelCause(context.Background())
		gone, stays := r.ask(ctx, one("", 0)), r.ask(r.within(), one("", 0))
		cancel(cause)
		<-gone.done
		require.ErrorIs(t, gone.err, cause)
		late, stop := context.WithTimeout(context.Background(), time.Millisecond)
		defer stop()
		_, err := r.Place(late, one("", 0))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = r.Place(ctx, one("", 0))
		require.ErrorIs(t, err, cause, "a call that has ended gets no slot, even if one is free")
		first.End()
		r.got(stays).End()
		second.End()
		s := r.stats()
		require.EqualValues(t, 3, s.Placed)
		require.LessOrEqual(t, s.Left, uint64(2))
		require.Positive(t, s.Left)
	})
}

func TestMaxQueueTimeRefusesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		const longest = 20 * time.Second
		r := newRig(t, 1, 1, admission.MaxQueueTime(longest))
		first, second := r.place(one("", 0)), r.place(one("", 0))
		resume := route.Request{Model: "m", Sequences: 1, Resumes: true}
		third := r.place(resume) // in the slot that only streams that resume may use
		begun := time.Now()
		waits := r.ask(context.Background(), one("", 0))
		resumes := r.ask(context.Background(), resume)
		<-waits.done
		require.ErrorIs(t, waits.err, admission.ErrQueueTimeout)
		require.GreaterOrEqual(t, time.Since(begun), longest)
		var refusal *route.Refusal
		require.ErrorAs(t, waits.err, &refusal)
		require.Positive(t, refusal.RetryMillis)
		require.Equal(t, "20000", refusal.Numbers["max_queue_time_ms"])
		ctx, cancel := context.WithTimeout(context.Background(), longest/2)
		defer cancel()
		_, err := r.Place(ctx, one("", 0))
		require.ErrorIs(t, err, context.DeadlineExceeded, "its own deadline is earlier")
		first.End()
		second.End()
		r.got(resumes).End()
		third.End()
		s := r.stats()
		require.EqualValues(t, 1, s.Expired)
		require.EqualValues(t, 1, s.Left)
		require.Zero(t, s.Waiting)
		require.Zero(t, r.sequences(0))
		r.place(one("", 0)).End()
	})
}

func TestNoMaxQueueTimeWaitsForTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 1, admission.MaxQueueTime(0))
		first, second := r.place(one("", 0)), r.place(one("", 0))
		waits := r.ask(context.Background(), one("", 0))
		time.Sleep(2 * admission.DefaultMaxQueueTime)
		first.End()
		r.got(waits).End()
		second.End()
	})
}

func TestExpiryLosesNoSlots(t *testing.T) {
	// Slots become free at the same moments at which waiters expire. Each slot is granted once, or
	// stays free.
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		const callers = 400
		r := newRig(t, 2, 2, admission.MaxQueue(callers), admission.MaxQueueTime(50*time.Millisecond))
		var placed, refused atomic.Int64
		together(callers, func(n int) {
			time.Sleep(time.Duration(n%20) * 10 * time.Millisecond)
			l, err := r.Place(context.Background(), one("", 0))
			switch {
			case errors.Is(err, admission.ErrQueueTimeout):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			default:
				placed.Add(1)
				time.Sleep(10 * time.Millisecond)
				l.End()
			}
		})
		t.Logf("%d placed, %d refused", placed.Load(), refused.Load())
		require.Positive(t, placed.Load())
		require.Positive(t, refused.Load())
		s := r.stats()
		require.EqualValues(t, callers, s.Placed+s.Expired)
		require.EqualValues(t, refused.Load(), s.Expired)
		require.Zero(t, s.Waiting+int(s.Left))
		for n := range 2 {
			require.Zero(t, r.sequences(n))
		}
		r.place(one("", 0)).End()
	})
}

func TestNewWorkerServesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 1)
		a, b := r.place(one("", 0)), r.place(one("", 0))
		waits := r.ask(r.within(), one("", 0))
		r.start(1, 1)
		l := r.got(waits)
		require.Equal(t, "w1", l.WorkerID)
		for _, l := range []*admission.Lease{a, b, l} {
			l.End()
		}
	})
}

func TestSlotsOfOtherSchedulersAreNotLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 4)
		running := func(n uint32) {
			r.workers[0].Change(func(report *pb.WorkerReport) {
				report.Load = &pb.LoadStatus{Models: []*pb.ModelLoad{{Name: "m", Running: n}}}
			})
		}
		running(4)
		load := r.fleet.Snapshot().Members[0].Load.Of("m")
		require.Eventually(t, func() bool { return load.Foreign() == 4 }, hang, time.Millisecond)
		spare := r.place(one("", 0))
		waits := r.ask(r.within(), one("", 0))
		running(3)
		l := r.got(waits)
		spare.End()
		l.End()
	})
}

func TestPlaceWaitsForAModelThatMayReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 4, admission.Grace(hang))
		r.place(one("", 0)).End()
		r.processes[0].Kill()
		r.await(0)
		first, resumed := r.ask(r.within(), one("", 0)), r.ask(r.within(), route.Request{Model: "m", Sequences: 1, Resumes: true})
		_, err := r.Place(r.within(), route.Request{Model: "never", Sequences: 1})
		require.ErrorIs(t, err, route.ErrNoWorker, "no worker had it")
		r.start(0, 4)
		r.got(first).End()
		r.got(resumed).End()
	})
}

func TestPinnedPlaceWaitsForADigestOrClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 4, admission.Grace(hang))
		lease := r.place(one("", 0))
		class := lease.ClassID
		digest := r.fleet.Snapshot().Route.Workers[0].Models[0].Digest
		require.NotEmpty(t, class)
		require.NotEmpty(t, digest)
		lease.End()
		r.processes[0].Kill()
		r.await(0)
		byClass, byDigest := one("", 0), one("", 0)
		byClass.ClassID, byDigest.Digest = class, digest
		first, second := r.ask(r.within(), byClass), r.ask(r.within(), byDigest)
		for name, change := range map[string]func(*route.Request){
			"another class":                 func(q *route.Request) { q.ClassID = "never" },
			"another digest":                func(q *route.Request) { q.Digest = "never" },
			"its class, and another digest": func(q *route.Request) { q.ClassID, q.Digest = class, "never" },
		} {
			q := one("", 0)
			change(&q)
			_, err := r.Place(r.within(), q)
			var refusal *route.Refusal
			require.ErrorAs(t, err, &refusal, "%s: no worker had it", name)
		}
		r.start(0, 4)
		r.got(first).End()
		r.got(second).End()
	})
}

func TestGraceEndsTheWaitForAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		const grace = 200 * time.Millisecond
		r := newRig(t, 1, 4, admission.Grace(grace))
		r.processes[0].Kill()
		r.await(0)
		_, err := r.Place(r.within(), one("", 0))
		require.ErrorIs(t, err, route.ErrNoWorker)
		time.Sleep(grace) // since its last message
		_, err = r.Place(r.within(), one("", 0))
		require.ErrorIs(t, err, route.ErrNoWorker)
		ctx, cancel := context.WithCancel(context.Background())
		resumes := r.ask(ctx, route.Request{Model: "m", Sequences: 1, Resumes: true})
		cancel()
		<-resumes.done
		require.ErrorIs(t, resumes.err, context.Canceled, "a stream that resumes waits until its caller is gone")
	})
}

func TestResumeMayReturnToAnExcludedWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 4)
		r.place(route.Request{Model: "m", Sequences: 1, Resumes: true, Exclude: []string{"w0"}}).End()
		_, err := r.Place(r.within(), route.Request{Model: "m", Sequences: 1, Exclude: []string{"w0"}})
		require.ErrorIs(t, err, route.ErrNoWorker, "a request that has not begun is placed again by the relay")
	})
}

func TestLeaseCountsTokensOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 4)
		l := r.place(one("", 0))
		load := r.fleet.Snapshot().Members[0].Load
		require.EqualValues(t, 10, load.Of("m").Prefill())
		require.EqualValues(t, 100, load.Tokens())
		l.Started()
		l.Started()
		l.Progress(10)
		require.Zero(t, load.Of("m").Prefill())
		require.EqualValues(t, 90, load.Tokens())
		l.Progress(1000)
		require.Zero(t, load.Tokens())
		l.End()
		require.Zero(t, load.Tokens())
		require.Zero(t, load.InFlight())
	})
}
