package route_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// fleetOf returns n workers that serve one model in a number of slots each, and may report
// prefixes.
func fleetOf(n int, places int64) *route.Snapshot {
	var indexes route.Indexes
	var workers []route.Worker
	for i := range n {
		workers = append(workers, route.Worker{ID: fmt.Sprintf("w%03d", i), Connected: true, State: route.Ready,
			Models: []route.Model{{Name: "other", Ready: true}, {Name: "m", Digest: "d", Ready: true, ContextLength: 1 << 20,
				MaxSequences: places, Prefixes: indexes.Prefixes("m", "d")}},
			Load: &route.Load{}})
	}
	s := route.NewSnapshot(true, workers)
	return &s
}

func TestPickSpreadsABurst(t *testing.T) {
	s := fleetOf(20, 128)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 * 64 {
		c, err := route.Pick(s, route.Request{Model: "m", Prompt: 100, Sequences: 1, Tie: random.Uint64()})
		require.NoError(t, err)
		require.True(t, c.Reserve())
	}
	for i := range s.Workers {
		require.InDelta(t, 64, s.Workers[i].Load.InFlight(), 4)
	}
}

func TestPickWithoutPoolsIsTheSame(t *testing.T) {
	s := fleetOf(3, 2)
	bare := &route.Snapshot{Known: true, Workers: s.Workers}
	for range 9 {
		c, err := route.Pick(s, route.Request{Model: "m", Sequences: 1})
		same, other := route.Pick(bare, route.Request{Model: "m", Sequences: 1})
		require.NoError(t, err)
		require.NoError(t, other)
		require.Equal(t, c.Index, same.Index)
		require.True(t, c.Reserve())
	}
	_, err := route.Pick(bare, route.Request{Model: "m", Sequences: 1})
	require.ErrorIs(t, err, route.ErrWorkersFull)
}

func TestReserveNeverExceedsTheSlots(t *testing.T) {
	const callers, rounds, most = 4, 100_000, 3 // 2 slots and one oversubscribed sequence
	s := fleetOf(1, 2)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				c, err := route.Pick(s, route.Request{Model: "m", Prompt: 10, Tokens: 20, Sequences: 1})
				if err != nil || !c.Reserve() {
					continue
				}
				if n := s.Workers[0].Load.Of("m").Sequences(); n > most {
					t.Errorf("%d sequences, and at most %d may be there", n, most)
				}
				c.Started()
				c.Progress(7)
				c.End()
			}
		})
	}
	all.Wait()
	load := s.Workers[0].Load
	require.Zero(t, load.InFlight())
	require.Zero(t, load.Tokens())
	require.Zero(t, load.Of("m").Sequences())
	require.Zero(t, load.Of("m").Prefill())
}

func TestLoadBeginNeverExceedsItsBound(t *testing.T) {
	const most, callers, rounds = 1, 4, 300_000 // two goroutines at once would exceed it on two processors
	var l route.Load
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				if l.Begin(10, most) {
					if l.InFlight() > most {
						t.Error("too many")
					}
					l.End(10)
				}
			}
		})
	}
	all.Wait()
	require.Zero(t, l.InFlight())
	require.Zero(t, l.Tokens())
	require.True(t, l.Begin(1, most))
	require.False(t, l.Begin(1, most))
	require.True(t, l.Begin(1, 0), "0: no bound")
}

func TestPickAllocatesNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector empties pools at random: run make test, which CI does too")
	}
	s := fleetOf(50, 128)
	keys := report(s, 20, 40)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_, err := route.Pick(s, route.Request{Model: "m", Prompt: 5000, Sequences: 1, Keys: keys})
		require.NoError(t, err)
	}))
	for i := range s.Workers {
		s.Workers[i].Models[1].ContextLength = int64(1+i%3) << 12
	}
	uneven := route.NewSnapshot(true, s.Workers)
	for _, length := range []int64{5000, route.Unbounded} {
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			c, err := route.Pick(&uneven, route.Request{Model: "m", Prompt: 5000, Length: length, Sequences: 1, Keys: keys})
			if err != nil || c.Context < min(length, 3<<12) {
				t.Errorf("a context of %d: %v", c.Context, err)
			}
		}), "contexts differ")
	}
}
