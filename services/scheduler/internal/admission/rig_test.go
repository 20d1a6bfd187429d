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

// hang bounds waits that end much sooner unless the code under test hangs.
const hang = time.Minute

// rig is an admission over an in-memory fleet.
type rig struct {
	testing.TB
	*admission.Admission
	net       *workertest.Net
	fleet     *fleet.Fleet
	workers   []*workertest.Worker
	processes []*workertest.Process
}

// newRig starts workers w0, w1, ... at a:0, a:1, ... that serve model m in as many places; the
// fleet knows one address more.
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

// start starts worker n. It can start one again that was killed.
func (r *rig) start(n int, places uint32) {
	r.Helper()
	w := workertest.New(fmt.Sprintf("w%d", n), fmt.Sprintf("i%d", len(r.processes)), "m")
	w.Change(func(report *pb.WorkerReport) {
		report.Models[0].Loaded = &pb.LoadResult{MaxSequences: places}
	})
	r.workers = append(r.workers, w)
	r.processes = append(r.processes, r.net.Start(r, fmt.Sprintf("a:%d", n), w))
}

// await waits until n workers are connected.
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

// within returns a context that ends after hang.
func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	r.Cleanup(cancel)
	return ctx
}

// place leases a slot, which must be free or become free.
func (r *rig) place(request route.Request) *admission.Lease {
	r.Helper()
	l, err := r.Place(r.within(), request)
	require.NoError(r, err)
	return l
}

// pending is a request that waits.
type pending struct {
	lease *admission.Lease
	err   error
	done  chan struct{}
}

// ask places a request on another goroutine, and returns once it waits.
func (r *rig) ask(ctx context.Context, request route.Request) *pending {
	r.Helper()
	before := r.stats()
	a := &pending{done: make(chan struct{})}
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

// stats returns the stats of model m.
func (r *rig) stats() admission.Stats {
	for _, s := range r.Stats() {
		if s.Model == "m" {
			return s
		}
	}
	return admission.Stats{}
}

// got waits until a request has its lease.
func (r *rig) got(a *pending) *admission.Lease {
	r.Helper()
	select {
	case <-a.done:
	case <-time.After(hang):
		require.FailNow(r, "not placed")
	}
	require.NoError(r, a.err)
	return a.lease
}

// sequences returns how many sequences this process has on worker n.
func (r *rig) sequences(n int) int64 { return r.fleet.Snapshot().Members[n].Load.Of("m").Sequences() }

// one returns a request of one sequence.
func one(tenant string, priority int32) route.Request {
	return route.Request{Model: "m", Prompt: 10, Tokens: 100, Sequences: 1, Tenant: tenant, Priority: priority}
}

// together runs a function n times concurrently.
func together(n int, do func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { do(i) })
	}
	all.Wait()
}
