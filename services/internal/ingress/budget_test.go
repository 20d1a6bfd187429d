package ingress

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func from(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

// waiting is a call of Acquire.
type waiting struct {
	admit  chan func()
	failed chan error
}

// enter calls Acquire in its own goroutine.
func enter(ctx context.Context, g *Budget, addr netip.Addr, bytes int64) waiting {
	w := waiting{make(chan func(), 1), make(chan error, 1)}
	go func() {
		release, err := g.Acquire(ctx, addr, bytes)
		if err != nil {
			w.failed <- err
			return
		}
		w.admit <- release
	}()
	synctest.Wait()
	return w
}

func (w waiting) admitted() bool {
	synctest.Wait()
	return len(w.admit) == 1
}

func TestBudgetQueuesWhatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewBudget(100)
		ctx := t.Context()
		a, b, c := enter(ctx, g, from(1), 60), enter(ctx, g, from(1), 60), enter(ctx, g, from(1), 30)
		require.True(t, a.admitted())
		require.False(t, b.admitted())
		require.False(t, c.admitted(), "nobody passes who waits longer")
		require.EqualValues(t, 60, g.Used())
		require.Equal(t, 2, g.Waiting())
		(<-a.admit)()
		require.True(t, b.admitted())
		require.True(t, c.admitted())
		(<-b.admit)()
		(<-c.admit)()
		require.Zero(t, g.Used())
		require.Empty(t, g.byAddress)

		huge := enter(ctx, g, from(1), 1000)
		require.True(t, huge.admitted(), "more than all is all")
		require.EqualValues(t, 100, g.Used())
		(<-huge.admit)()
	})
}

func TestBudgetPrefersTheEmptiestAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewBudget(100)
		var many []waiting
		for range 10 {
			many = append(many, enter(t.Context(), g, from(1), 50))
		}
		one := enter(t.Context(), g, from(2), 50)
		require.False(t, one.admitted())
		(<-many[0].admit)()
		require.True(t, one.admitted(), "it came last and has nothing inside")
		require.False(t, many[2].admitted())
		(<-many[1].admit)()
		require.True(t, many[2].admitted())
		for _, w := range append(many[2:], one) {
			(<-w.admit)()
		}
		require.Zero(t, g.Used())
	})
}

func TestBudgetDropsAbandonedWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewBudget(100)
		a := enter(t.Context(), g, from(1), 80)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b, c := enter(ctx, g, from(1), 80), enter(t.Context(), g, from(1), 10)
		require.False(t, c.admitted())
		require.ErrorIs(t, <-b.failed, context.DeadlineExceeded)
		require.True(t, c.admitted(), "who stood behind is next")
		(<-a.admit)()
		(<-c.admit)()
		require.Zero(t, g.Used())
	})
}

func TestBudgetBoundsItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewBudget(1)
		ctx, cancel := context.WithCancel(t.Context())
		first := enter(ctx, g, from(1), 1)
		for range maxQueue {
			go func() { _, _ = g.Acquire(ctx, from(1), 1) }()
		}
		synctest.Wait()
		require.Equal(t, maxQueue, g.Waiting())
		_, err := g.Acquire(ctx, from(2), 1)
		require.ErrorIs(t, err, ErrQueueFull)
		cancel()
		synctest.Wait()
		require.Zero(t, g.Waiting())
		(<-first.admit)()
	})
}

func TestBudgetIsNeverExceeded(t *testing.T) {
	g := NewBudget(1000)
	var all sync.WaitGroup
	for n := range byte(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 3))
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(2000))*time.Microsecond)
				if release, err := g.Acquire(ctx, from(n), 1+r.Int64N(700)); err == nil {
					require.LessOrEqual(t, g.Used(), int64(1000))
					release()
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.Zero(t, g.Used())
	require.Zero(t, g.Waiting())
	require.Empty(t, g.byAddress)
}

func TestSendBudgetLimitsEachAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewSendBudget(100, 50)
		ctx := t.Context()
		first, ok := g.TryAcquire(from(1), 70)
		require.True(t, ok, "one message of an address always passes")
		_, ok = g.TryAcquire(from(1), 1)
		require.False(t, ok, "it has more than half of the room")
		second := enter(ctx, g, from(1), 30)
		require.False(t, second.admitted())
		other := enter(ctx, g, from(2), 30)
		require.True(t, other.admitted(), "who waits for its own address holds up no other")
		small := enter(ctx, g, from(1), 10)
		require.False(t, small.admitted(), "nobody passes one of the same address who waits longer")
		_, err := g.Acquire(ctx, from(3), 11)
		require.ErrorIs(t, err, ErrQueueFull, "they are in memory while they wait")
		first()
		require.True(t, second.admitted())
		require.True(t, small.admitted())
		for _, w := range []waiting{second, other, small} {
			(<-w.admit)()
		}
		require.Zero(t, g.Used())
		require.Zero(t, g.queuedBytes)
		require.Empty(t, g.byAddress)
	})
}

func TestSendBudgetQueuesOneLargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewSendBudget(100, 50)
		release, ok := g.TryAcquire(from(1), 1000)
		require.True(t, ok)
		require.EqualValues(t, 100, g.Used())
		ctx, cancel := context.WithCancel(t.Context())
		waits := enter(ctx, g, from(1), 1000)
		require.False(t, waits.admitted())
		cancel()
		require.ErrorIs(t, <-waits.failed, context.Canceled)
		require.Zero(t, g.queuedBytes)
		release()
		require.Zero(t, g.Used())
	})
}
