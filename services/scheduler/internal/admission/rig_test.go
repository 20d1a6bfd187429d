package admission_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/fleet"
	"github.com/millrace/millrace/services/scheduler/internal/route"
	"github.com/millrace/millrace/services/scheduler/internal/workertest"
)

// hang is a guard: what is waited for comes much sooner.
const hang = time.Minute

// rig is an admission over a fleet in memory.
type rig struct {
	testing.TB
	*admission.Admission
	net       *workertest.Net
	fleet     *fleet.Fleet
	workers   []*workertest.Worker
	processes []*workertest.Process
}

// newRig starts workers w0, w1, ... at a:0, a:1, ... that serve model m in as many places; the fleet knows one address more.
func newRig(t testing.TB, workers int, places uint32, options ...admission.Option) *rig {
	t.Helper()
	r := &rig{TB: t, net: workertest.NewNet()}
	var addresses []string
	for n := range workers + 1 {
		addresses = append(addresses, fmt.Sprintf("a:%d", n))
		if n < workers {
			r.start(n, places)
		}
	}
	logger := rpctest.Logger(t)
	f, err := fleet.New(fleet.Config{Workers: addresses, Dial: r.net.Dial, Interval: 20 * time.Millisecond, Stale: time.Minute,
		BackoffMax: 50 * time.Millisecond, Grace: hang}, logger)
	require.NoError(t, err)
	following, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(following) }()
	t.Cleanup(func() { cancel(); <-done })
	r.fleet, r.Admission = f, admission.New(f, 0, options...)
	r.await(workers)
	return r
}

// start runs worker n, or runs it again.
func (r *rig) start(n int, places uint32) {
	r.Helper()
	w := workertest.New(fmt.Sprintf("w%d", n), fmt.Sprintf("i%d", len(r.processes)), "m")
	w.Change(func(report *pb.WorkerReport) {
		report.Models[0].Loaded = &pb.LoadResult{MaxSequences: places}
	})
	r.workers = append(r.workers, w)
	r.processes = append(r.processes, r.net.Start(r, fmt.Sprintf("a:%d", n), w))
}

// await waits until as many workers are connected.
func (r *rig) await(n int) {
	r.Helper()
	require.Eventually(r, func() bool {
		s := r.fleet.Snapshot()
		have := 0
		for i := range s.Members {
			if s.Members[i].Connected {
				have++
			}
		}
		return s.Route.Known && have == n
	}, hang, time.Millisecond)
}

// within is a context with the hang guard.
func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.Cleanup(cancel)
	return ctx
}

// take places a request at once.
func (r *rig) take(request route.Request) *admission.Lease {
	r.Helper()
	l, err := r.Place(r.within(), request)
	require.NoError(r, err)
	return l
}

// asked is a request that waits.
type asked struct {
	lease *admission.Lease
	err   error
	done  chan struct{}
}

// ask places a request on another goroutine, and returns when it waits.
func (r *rig) ask(ctx context.Context, request route.Request) *asked {
	r.Helper()
	before := r.stats()
	a := &asked{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = r.Place(ctx, request)
	}()
	require.Eventually(r, func() bool {
		s := r.stats()
		return s.Waiting+s.Resuming == before.Waiting+before.Resuming+1
	}, hang, 100*time.Microsecond)
	return a
}

// stats are those of model m.
func (r *rig) stats() admission.Stats {
	for _, s := range r.Stats() {
		if s.Model == "m" {
			return s
		}
	}
	return admission.Stats{}
}

// got waits until a request has its place.
func (r *rig) got(a *asked) *admission.Lease {
	r.Helper()
	select {
	case <-a.done:
	case <-time.After(hang):
		require.FailNow(r, "not placed")
	}
	require.NoError(r, a.err)
	return a.lease
}

// sequences are those that this process has on worker n.
func (r *rig) sequences(n int) int64 { return r.fleet.Snapshot().Members[n].Load.Of("m").Sequences() }

// one is a request of one sequence.
func one(tenant string, priority int32) route.Request {
	return route.Request{Model: "m", Prompt: 10, Tokens: 100, Sequences: 1, Tenant: tenant, Priority: priority}
}

// together runs a function n times at once.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}
