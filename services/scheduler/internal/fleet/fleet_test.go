package fleet_test

import (
	"bytes"
	"context"
	"regexp"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang bounds waits that end much sooner unless the code under test hangs.
const hang = 20 * time.Second

// follow runs a fleet until the test ends.
func follow(t *testing.T, n *workertest.Net, change func(*fleet.Config), workers ...string) *fleet.Fleet {
	t.Helper()
	cfg := fleet.Config{Workers: workers, Dial: n.Dial, Interval: 10 * time.Millisecond, Stale: 300 * time.Millisecond,
		BackoffMax: 50 * time.Millisecond, Resolve: 10 * time.Millisecond, Grace: hang}
	if change != nil {
		change(&cfg)
	}
	f, err := fleet.New(cfg, rpctest.Logger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(hang):
			require.FailNow(t, "the fleet did not end")
		}
	})
	return f
}

// until waits for a snapshot for which a condition holds.
func until(t *testing.T, f *fleet.Fleet, holds func(*fleet.Snapshot) bool) *fleet.Snapshot {
	t.Helper()
	guard := time.After(hang)
	for {
		s := f.Snapshot()
		if holds(s) {
			return s
		}
		select {
		case <-s.Next:
		case <-guard:
			require.FailNow(t, "never came", "%+v", s.Members)
		}
	}
}

// connected returns the condition that n members are connected.
func connected(n int) func(*fleet.Snapshot) bool {
	return func(s *fleet.Snapshot) bool {
		have := 0
		for i, m := range s.Members {
			if m.Connected != s.Route.Workers[i].Connected {
				return false
			}
			if m.Connected {
				have++
			}
		}
		return have == n
	}
}

func TestReportsBecomeSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		w.OnHealth = func(*pb.HealthResponse) { time.Sleep(time.Millisecond) } // the least round trip
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		s := until(t, f, connected(1))
		require.True(t, s.Route.Known)
		require.Equal(t, "w1", s.Route.Workers[0].ID)
		require.Equal(t, "d-m", s.Route.Workers[0].Models[0].Digest)
		require.Equal(t, "class", s.Route.Workers[0].Models[0].ClassID)

		w.Change(func(r *pb.WorkerReport) { r.State = pb.WorkerState_WORKER_STATE_DRAINING; r.Load.Running = 3 })
		until(t, f, func(s *fleet.Snapshot) bool {
			return !s.Route.Workers[0].Serves() && s.Members[0].Report.GetLoad().GetRunning() == 3
		})
		require.Equal(t, time.Millisecond, f.Members()[0].RoundTrip)
	})
}

func TestLinkReportsEachDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		link := until(t, f, connected(1)).Members[0].Link
		told := make(chan struct{}, 2)
		defer link.OnDrain(func() { told <- struct{}{} })()
		state := func(to pb.WorkerState) { w.Change(func(r *pb.WorkerReport) { r.State = to }) }
		for range 2 {
			state(pb.WorkerState_WORKER_STATE_DRAINING)
			select {
			case <-told:
			case <-time.After(hang):
				require.FailNow(t, "the link did not tell")
			}
			require.NoError(t, link.Lost().Err(), "requests go on")
			until(t, f, func(s *fleet.Snapshot) bool { return !s.Route.Workers[0].Serves() })
			state(pb.WorkerState_WORKER_STATE_READY)
			until(t, f, func(s *fleet.Snapshot) bool { return s.Route.Workers[0].Serves() })
		}
		require.Empty(t, told)
	})
}

func TestGapIsRepairedByAFullReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		var fulls atomic.Int64
		var skipped, last uint64 // used by the stream's goroutine
		var skip atomic.Bool
		w.OnHealth = func(out *pb.HealthResponse) {
			if skip.CompareAndSwap(true, false) {
				skipped = 7
			}
			out.Sequence += skipped
			if out.GetSequence() < last {
				t.Error("another stream")
			}
			last = out.GetSequence()
			if out.GetFull() != nil {
				fulls.Add(1)
			}
		}
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		link := until(t, f, connected(1)).Members[0].Link
		skip.Store(true)
		require.Eventually(t, func() bool { return fulls.Load() == 2 }, hang, time.Millisecond)
		require.Same(t, link, until(t, f, connected(1)).Members[0].Link)
		require.NoError(t, link.Lost().Err())
		require.Equal(t, fleet.Events{Resyncs: 1}, f.Events())
	})
}

func TestSilentWorkerIsLostAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		p := n.Start(t, "a:1", workertest.New("w1", "i1", "m"))
		f := follow(t, n, nil, "a:1")
		link := until(t, f, connected(1)).Members[0].Link
		require.True(t, link.Acquire())
		p.Freeze()
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
		require.False(t, link.Acquire())
		link.Release()
		s := until(t, f, func(s *fleet.Snapshot) bool { return connected(0)(s) && s.Members[0].Problem != "" })
		require.Contains(t, s.Members[0].Problem, "sends nothing")
		require.Equal(t, "w1", s.Route.Workers[0].ID, "what it was is remembered")
		require.EqualValues(t, 1, f.Events().Silent)
		p.Thaw()
		until(t, f, connected(1))
	})
}

func TestRestartedWorkerHasItsOwnLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		p := n.Start(t, "a:1", workertest.New("w1", "i1", "m"))
		f := follow(t, n, nil, "a:1")
		before := until(t, f, connected(1)).Members[0]
		before.Load.Begin(100, 0)
		p.Kill()
		until(t, f, connected(0))
		n.Start(t, "a:1", workertest.New("w1", "i2"))
		after := until(t, f, connected(1)).Members[0]
		require.Equal(t, "i2", after.Report.GetIncarnation())
		require.Empty(t, after.Report.GetModels())
		require.Zero(t, after.Load.Tokens())
	})
}

func TestReconnectedWorkerKeepsItsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		p := n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		until(t, f, connected(1)).Members[0].Load.Begin(100, 0)
		p.Kill()
		until(t, f, connected(0))
		n.Start(t, "a:1", w)
		require.EqualValues(t, 100, until(t, f, connected(1)).Members[0].Load.Tokens())
	})
}

func TestWorkerThatAnswersRequestsIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i1", "m")
		busy := make(chan struct{})
		defer close(busy)
		var said atomic.Int64
		w.OnHealth = func(*pb.HealthResponse) {
			if said.Add(1) == 2 {
				<-busy
			}
		}
		n.Start(t, "a:1", w)
		f := follow(t, n, nil, "a:1")
		link := until(t, f, connected(1)).Members[0].Link
		for begin := time.Now(); time.Since(begin) < 900*time.Millisecond; time.Sleep(time.Millisecond) {
			link.Heard()
		}
		require.NoError(t, link.Lost().Err())
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestBufferedFramesDoNotHideAFrozenWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, _, p, _ := held(t)
		p.Freeze()
		guard := time.After(hang)
		for link.Lost().Err() == nil {
			link.Heard() // as a slow consumer reads buffered frames
			select {
			case <-time.After(time.Millisecond):
			case <-guard:
				require.FailNow(t, "the link was not lost")
			}
		}
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

// held follows a worker and acquires its first link.
func held(t *testing.T) (*fleet.Link, *workertest.Worker, *workertest.Process, *fleet.Fleet) {
	t.Helper()
	n := workertest.NewNet()
	w := workertest.New("w1", "i1", "m")
	p := n.Start(t, "a:1", w)
	f := follow(t, n, nil, "a:1")
	link := until(t, f, connected(1)).Members[0].Link
	require.True(t, link.Acquire())
	t.Cleanup(link.Release)
	return link, w, p, f
}

// lost waits until a link is lost, and returns why.
func lost(t *testing.T, link *fleet.Link) error {
	t.Helper()
	select {
	case <-link.Lost().Done():
	case <-time.After(hang):
		require.FailNow(t, "the link was not lost")
	}
	return context.Cause(link.Lost())
}

func TestFreezeAfterTheHealthStreamIsDetected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, w, p, f := held(t)
		w.HangUp()
		until(t, f, connected(0))
		p.Freeze()
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestEarlierConnectionSurvivesWhileAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, w, p, f := held(t)
		w.HangUp()
		until(t, f, func(s *fleet.Snapshot) bool { return s.Members[0].Connected && s.Members[0].Link != link })
		time.Sleep(900 * time.Millisecond) // three times as long as a worker may be silent
		require.NoError(t, link.Lost().Err())
		p.Freeze()
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestUnfollowedWorkerIsWatchedByItsLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		p := n.Start(t, "10.0.0.1:7", workertest.New("w1", "i1", "m"))
		n.Start(t, "10.0.0.2:7", workertest.New("w2", "i1", "m"))
		var host atomic.Value
		host.Store("10.0.0.1")
		f := follow(t, n, func(c *fleet.Config) {
			c.Lookup = func(context.Context, string) ([]string, error) { return []string{host.Load().(string)}, nil }
		}, "dns:///workers:7")
		link := until(t, f, connected(1)).Members[0].Link
		require.True(t, link.Acquire())
		defer link.Release()
		host.Store("10.0.0.2")
		until(t, f, func(s *fleet.Snapshot) bool { return connected(1)(s) && s.Members[0].Address == "10.0.0.2:7" })
		time.Sleep(900 * time.Millisecond)
		require.NoError(t, link.Lost().Err(), "its requests end by themselves")
		p.Freeze()
		require.ErrorIs(t, lost(t, link), fleet.ErrStale)
	})
}

func TestHangingStepLosesTheWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		link, w, _, f := held(t)
		step := func(age time.Duration) {
			w.Change(func(r *pb.WorkerReport) {
				r.Progress = &pb.StepProgress{StepBound: durationpb.New(time.Second), RunningStepAge: durationpb.New(age)}
			})
		}
		step(900 * time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		require.NoError(t, link.Lost().Err(), "a step within its bound is none that hangs")
		for age := 1100 * time.Millisecond; link.Lost().Err() == nil; age += 10 * time.Millisecond {
			step(age)
			time.Sleep(5 * time.Millisecond)
		}
		require.ErrorIs(t, lost(t, link), fleet.ErrStalled)
		s := until(t, f, func(s *fleet.Snapshot) bool { return !s.Members[0].Connected })
		require.Contains(t, s.Members[0].Problem, "a step of the worker hangs")
		step(0)
		until(t, f, connected(1))
		require.EqualValues(t, 1, f.Events().Stalled, "snapshots say so before its stream has ended, which is counted")
	})
}

func TestContradictingDigestIsRefused(t *testing.T) {
	for name, lie := range map[string]func(*workertest.Worker, *fleet.Link){
		"one that changes while the model serves": func(w *workertest.Worker, _ *fleet.Link) {
			w.Change(func(r *pb.WorkerReport) { r.Models[0].ModelDigest = "d-other" })
		},
		"one that is served and not reported": func(_ *workertest.Worker, link *fleet.Link) { link.ObserveDigest("m", "d-other") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rpctest.NoLeaks(t)
				link, w, _, f := held(t)
				link.ObserveDigest("m", "d-m")
				lie(w, link)
				require.ErrorIs(t, lost(t, link), fleet.ErrDigest)
				s := until(t, f, func(s *fleet.Snapshot) bool { return !s.Members[0].Connected && s.Members[0].Problem != "" })
				require.Contains(t, s.Members[0].Problem, "worker not believed")
				require.Contains(t, s.Members[0].Problem, "d-other")
				require.Contains(t, s.Members[0].Problem, "restart the worker")
				require.False(t, s.Route.Workers[0].Serves())
				// Events count streams that have ended, which snapshots show earlier.
				require.Eventually(t, func() bool { return f.Events().Disbelieved > 0 }, hang, time.Millisecond)
			})
		})
	}
}

func TestOneWorkerAtTwoAddressesIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		w := workertest.New("w1", "i", "m")
		n.Start(t, "a:1", w)
		n.Start(t, "b:1", w)
		n.Start(t, "c:1", workertest.New("w1", "other", "m"))
		f := follow(t, n, nil, "b:1", "a:1", "c:1")
		s := until(t, f, func(s *fleet.Snapshot) bool {
			return len(s.Members) == 3 && s.Members[0].Connected && s.Members[1].Report != nil && s.Members[2].Report != nil
		})
		require.True(t, connected(1)(s))
		require.Equal(t, "the same worker as a:1", s.Members[1].Problem)
		require.Contains(t, s.Members[2].Problem, "give each worker its own")
	})
}

func TestDuplicateWorkersAreLoggedOnce(t *testing.T) {
	// If two processes have one worker_id, the log names both addresses once, however often the
	// fleet changes.
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "a:1", workertest.New("w", "one", "m"))
		n.Start(t, "b:1", workertest.New("w", "two", "m"))
		var log bytes.Buffer
		f, err := fleet.New(fleet.Config{Workers: []string{"a:1", "b:1", "c:1"}, Dial: n.Dial, Interval: 10 * time.Millisecond},
			hclog.New(&hclog.LoggerOptions{Output: &log}))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		s := until(t, f, func(s *fleet.Snapshot) bool { return len(s.Members) == 3 && s.Members[1].Duplicate })
		require.False(t, s.Members[0].Duplicate)
		n.Start(t, "c:1", workertest.New("other", "three", "m"))
		until(t, f, connected(2))
		cancel()
		require.NoError(t, <-done)
		require.Len(t, regexp.MustCompile(`two workers have one id.*worker=w serves=a:1 left_out=b:1`).FindAllString(log.String(), -1), 1)
	})
}

func TestFleetIsKnownOnceEveryWorkerHasAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "a:1", workertest.New("w1", "i", "m"))
		silent := n.Start(t, "b:1", workertest.New("w2", "i", "m"))
		silent.Freeze()
		f := follow(t, n, func(c *fleet.Config) { c.Stale = hang }, "a:1", "b:1", "nobody:1")
		s := until(t, f, func(s *fleet.Snapshot) bool {
			return connected(1)(s) && len(s.Members) == 3 && s.Members[2].Problem != ""
		})
		require.False(t, s.Route.Known, "b has not answered yet")
		require.Contains(t, s.Members[2].Problem, "refused")
		silent.Thaw()
		until(t, f, func(s *fleet.Snapshot) bool { return s.Route.Known && connected(2)(s) })
	})
}

func TestGraceEndsTheWaitForUnreachedWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		n := workertest.NewNet()
		n.Start(t, "b:1", workertest.New("w2", "i", "m")).Freeze()
		f := follow(t, n, func(c *fleet.Config) { c.Stale, c.Grace = hang, 20*time.Millisecond }, "b:1")
		until(t, f, func(s *fleet.Snapshot) bool { return s.Route.Known && connected(0)(s) })
	})
}

func TestInvalidTargetsAreRefused(t *testing.T) {
	for _, target := range []string{"", "a", "a:", ":1", "dns:///a", "xds:///a:1", "unix:", "http://a:1/"} {
		_, err := fleet.New(fleet.Config{Workers: []string{target}, Dial: func(string) (*grpc.ClientConn, error) { return nil, nil }}, rpctest.Logger(t))
		require.ErrorIs(t, err, fleet.ErrTarget, "%q", target)
	}
}
