package intake

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

// guest is one who has asked to enter.
type guest struct {
	inside chan func()
	failed chan error
}

// enter asks on a goroutine of its own.
func enter(ctx context.Context, g *Gate, who netip.Addr, bytes int64) guest {
	is := guest{make(chan func(), 1), make(chan error, 1)}
	go func() {
		leave, err := g.Enter(ctx, who, bytes)
		if err != nil {
			is.failed <- err
			return
		}
		is.inside <- leave
	}()
	synctest.Wait()
	return is
}

func (is guest) in() bool {
	synctest.Wait()
	return len(is.inside) == 1
}

func TestWhoFindsNoRoomWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(100)
		ctx := t.Context()
		a, b, c := enter(ctx, g, from(1), 60), enter(ctx, g, from(1), 60), enter(ctx, g, from(1), 30)
		require.True(t, a.in())
		require.False(t, b.in())
		require.False(t, c.in(), "nobody passes who waits longer")
		require.EqualValues(t, 60, g.Used())
		require.Equal(t, 2, g.Waiting())
		(<-a.inside)()
		require.True(t, b.in())
		require.True(t, c.in())
		(<-b.inside)()
		(<-c.inside)()
		require.Zero(t, g.Used())
		require.Empty(t, g.inside)

		huge := enter(ctx, g, from(1), 1000)
		require.True(t, huge.in(), "more than all is all")
		require.EqualValues(t, 100, g.Used())
		(<-huge.inside)()
	})
}

func TestTheAddressWithLeastInsideIsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(100)
		var many []guest
		for range 10 {
			many = append(many, enter(t.Context(), g, from(1), 50))
		}
		one := enter(t.Context(), g, from(2), 50)
		require.False(t, one.in())
		(<-many[0].inside)()
		require.True(t, one.in(), "it came last and has nothing inside")
		require.False(t, many[2].in())
		(<-many[1].inside)()
		require.True(t, many[2].in())
		for _, left := range append(many[2:], one) {
			(<-left.inside)()
		}
		require.Zero(t, g.Used())
	})
}

func TestWhoGivesUpLeavesTheLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(100)
		a := enter(t.Context(), g, from(1), 80)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b, c := enter(ctx, g, from(1), 80), enter(t.Context(), g, from(1), 10)
		require.False(t, c.in())
		require.ErrorIs(t, <-b.failed, context.DeadlineExceeded)
		require.True(t, c.in(), "who stood behind is next")
		(<-a.inside)()
		(<-c.inside)()
		require.Zero(t, g.Used())
	})
}

func TestALineHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(1)
		ctx, cancel := context.WithCancel(t.Context())
		first := enter(ctx, g, from(1), 1)
		for range maxLine {
			go func() { _, _ = g.Enter(ctx, from(1), 1) }()
		}
		synctest.Wait()
		require.Equal(t, maxLine, g.Waiting())
		_, err := g.Enter(ctx, from(2), 1)
		require.ErrorIs(t, err, ErrCrowded)
		cancel()
		synctest.Wait()
		require.Zero(t, g.Waiting())
		(<-first.inside)()
	})
}

func TestNeverIsMoreInsideThanThereIsRoomFor(t *testing.T) {
	g := NewGate(1000)
	var all sync.WaitGroup
	for n := range byte(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(n), 3))
			for range 300 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(2000))*time.Microsecond)
				if leave, err := g.Enter(ctx, from(n), 1+r.Int64N(700)); err == nil {
					require.LessOrEqual(t, g.Used(), int64(1000))
					leave()
				}
				cancel()
			}
		})
	}
	all.Wait()
	require.Zero(t, g.Used())
	require.Zero(t, g.Waiting())
	require.Empty(t, g.inside)
}

func TestSendGateSharesItsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewSendGate(100, 50)
		ctx := t.Context()
		first, ok := g.TryEnter(from(1), 70)
		require.True(t, ok, "one message of an address always passes")
		_, ok = g.TryEnter(from(1), 1)
		require.False(t, ok, "it has more than half of the room")
		second := enter(ctx, g, from(1), 30)
		require.False(t, second.in())
		other := enter(ctx, g, from(2), 30)
		require.True(t, other.in(), "who waits for its own address holds up no other")
		small := enter(ctx, g, from(1), 10)
		require.False(t, small.in(), "nobody passes one of the same address who waits longer")
		_, err := g.Enter(ctx, from(3), 11)
		require.ErrorIs(t, err, ErrCrowded, "they are in memory while they wait")
		first()
		require.True(t, second.in())
		require.True(t, small.in())
		for _, one := range []guest{second, other, small} {
			(<-one.inside)()
		}
		require.Zero(t, g.Used())
		require.Zero(t, g.queued)
		require.Empty(t, g.inside)
	})
}

func TestSendGateLetsOneLargeMessageWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewSendGate(100, 50)
		leave, ok := g.TryEnter(from(1), 1000)
		require.True(t, ok)
		require.EqualValues(t, 100, g.Used())
		ctx, cancel := context.WithCancel(t.Context())
		waits := enter(ctx, g, from(1), 1000)
		require.False(t, waits.in())
		cancel()
		require.ErrorIs(t, <-waits.failed, context.Canceled)
		require.Zero(t, g.queued)
		leave()
		require.Zero(t, g.Used())
	})
}
