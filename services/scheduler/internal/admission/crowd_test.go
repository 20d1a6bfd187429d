package admission_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/rpc/rpctest"
	"github.com/millrace/millrace/services/scheduler/internal/admission"
	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// served ends leases one after another until all waiters had one, and returns the order of the
// waiters.
func (r *rig) served(held []*admission.Lease, waiting map[string][]*pending) (order []string) {
	r.Helper()
	type granted struct {
		name  string
		lease *admission.Lease
	}
	grants := make(chan granted)
	var all sync.WaitGroup
	for name, those := range waiting {
		for _, a := range those {
			all.Go(func() { grants <- granted{name, r.got(a)} })
		}
	}
	for len(held) > 0 {
		before := r.stats().Placed
		held[0].End()
		held = held[1:]
		for range r.stats().Placed - before { // slots are granted before End returns
			g := <-grants
			order, held = append(order, g.name), append(held, g.lease)
		}
	}
	all.Wait()
	return order
}

func TestNoisyNeighbourDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 1)
		begin := []*admission.Lease{r.place(one("noisy", 0)), r.place(one("noisy", 0))}
		waiting := map[string][]*pending{}
		for range 60 {
			waiting["noisy"] = append(waiting["noisy"], r.ask(r.within(), one("noisy", 0)))
		}
		for range 3 {
			waiting["quiet"] = append(waiting["quiet"], r.ask(r.within(), one("quiet", 0)))
		}
		order := r.served(begin, waiting)
		require.Len(t, order, 63)
		last := 0
		for i, name := range order {
			if name == "quiet" {
				last = i
			}
		}
		require.Less(t, last, 12, "three requests of one tenant wait for about three of the other: %v", order)
	})
}

func TestUrgentRequestsOvertakeOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 1, 2, admission.MaxQueue(40))
		begin := []*admission.Lease{r.place(one("a", 0)), r.place(one("b", 0)), r.place(one("c", 0))}
		waiting := map[string][]*pending{}
		for range 40 {
			waiting["low"] = append(waiting["low"], r.ask(r.within(), one("a", -5)))
		}
		// The queue is full of them, and a wide request waits for all slots. Urgent ones overtake both.
		wide := one("w", 1)
		wide.Sequences = 2
		waiting["wide"] = []*pending{r.replace(&waiting, wide)}
		for range 5 {
			waiting["urgent"] = append(waiting["urgent"], r.replace(&waiting, one("u", 7)))
		}
		order := r.served(begin, waiting)
		require.Len(t, order, 40)
		require.Less(t, slices.Index(order, "urgent"), 3)
		require.Less(t, slices.Index(order, "wide"), 12, "%v", order)
	})
}

// replace places a request while the queue is full, and drops the waiter that it displaces from
// waiting.
func (r *rig) replace(waiting *map[string][]*pending, request route.Request) *pending {
	r.Helper()
	before := r.stats().Displaced
	a := &pending{done: make(chan struct{})}
	ctx := r.within()
	go func() {
		defer close(a.done)
		a.lease, a.err = r.Place(ctx, request)
	}()
	require.Eventually(r, func() bool { return r.stats().Displaced == before+1 }, hang, time.Millisecond)
	low := (*waiting)["low"]
	last := low[len(low)-1]
	<-last.done
	require.ErrorIs(r, last.err, admission.ErrDisplaced)
	(*waiting)["low"] = low[:len(low)-1]
	return a
}

func TestBurstOfEqualPromptsHitsOnePrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rpctest.NoLeaks(t)
		r := newRig(t, 4, 128)
		request := route.Request{Model: "m", Prompt: 4000, Tokens: 4100, Sequences: 1,
			Keys: []route.Key{{Key: 1, Tokens: 2000}, {Key: 2, Tokens: 3990}}}
		first := r.place(request)
		burst := make([]*admission.Lease, 20)
		together(len(burst), func(i int) { burst[i] = r.place(request) })
		leases := append([]*admission.Lease{first}, burst...)
		for _, l := range burst {
			require.Equal(t, first.WorkerID, l.WorkerID)
			require.EqualValues(t, 3990, l.Cached)
		}
		// If that worker is loaded far more than the others, it loses requests in spite of the
		// prefix hit. Twenty sequences more are not far more, two hundred are.
		where := map[string]int{}
		for range 200 {
			l := r.place(request)
			where[l.WorkerID]++
			leases = append(leases, l)
		}
		require.Greater(t, len(where), 1)
		for _, l := range leases {
			l.End()
		}
	})
}

func TestRetryStormIsBounded(t *testing.T) {
	rpctest.NoLeaks(t)
	const most = 16
	r := newRig(t, 1, 2, admission.MaxQueue(most))
	begin := []*admission.Lease{r.place(one("", 0)), r.place(one("", 0)), r.place(one("", 0))}
	ctx, calm := context.WithCancel(r.within())
	var refused, longest atomic.Int64
	var storm sync.WaitGroup
	for range 100 {
		storm.Go(func() {
			for ctx.Err() == nil {
				l, err := r.Place(ctx, one("storm", 0))
				if err == nil {
					l.End()
				} else if errors.Is(err, route.ErrWorkersFull) || errors.Is(err, admission.ErrDisplaced) {
					refused.Add(1)
				}
				longest.Store(max(longest.Load(), int64(r.stats().Waiting)))
			}
		})
	}
	require.Eventually(t, func() bool { return refused.Load() > 1000 }, hang, time.Millisecond)
	// Nothing has ended yet, so the queue is full. Another tenant must get in nevertheless.
	served := make(chan struct{})
	go func() {
		defer close(served)
		for range 5 {
			l, err := r.Place(r.within(), one("patient", 0))
			if err != nil {
				t.Error(err)
				return
			}
			l.End()
		}
	}()
	for _, l := range begin {
		l.End()
	}
	<-served
	calm()
	storm.Wait()
	require.LessOrEqual(t, longest.Load(), int64(most))
	require.Zero(t, r.stats().Waiting)
}
