package route_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/scheduler/internal/route"
)

// fleetOf is n workers that serve one model.
func fleetOf(n int) *route.Snapshot {
	s := &route.Snapshot{Known: true}
	for i := range n {
		s.Workers = append(s.Workers, route.Worker{ID: fmt.Sprintf("w%03d", i), Connected: true, State: route.Ready,
			Models: []route.Model{{Name: "other", Ready: true}, {Name: "m", Digest: "d", Ready: true, ContextLength: 1 << 20}},
			Load:   &route.Load{}})
	}
	return s
}

func TestPickNeverChoosesAWorkerWithMoreTokens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := fleetOf(20)
	for range 2000 {
		tokens := rng.Int64N(1000)
		i, err := route.Pick(s, route.Request{Model: "m", Tokens: tokens, Tie: rng.Uint64()})
		require.NoError(t, err)
		for j := range s.Workers {
			require.GreaterOrEqual(t, s.Workers[j].Load.Tokens(), s.Workers[i].Load.Tokens())
		}
		s.Workers[i].Load.Begin(tokens, 0)
	}
}

func TestALoadNeverHasMoreUnderWayThanItMay(t *testing.T) {
	const most, callers, rounds = 1, 4, 1_000_000 // two at once are enough to see it, on two processors
	var l route.Load
	var highest atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				if !l.Begin(10, most) {
					continue
				}
				if n := l.InFlight(); n > highest.Load() {
					highest.Store(n)
				}
				l.End(10)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, most, highest.Load())
	require.Zero(t, l.InFlight())
	require.Zero(t, l.Tokens())
	for range most {
		require.True(t, l.Begin(1, most))
	}
	require.False(t, l.Begin(1, most))
	require.True(t, l.Begin(1, 0), "0 is no bound")
}

func BenchmarkPickAmong300Workers(b *testing.B) {
	s := fleetOf(300)
	b.ReportAllocs()
	for i := range b.N {
		if _, err := route.Pick(s, route.Request{Model: "m", Tokens: 1, Tie: uint64(i)}); err != nil {
			b.Fatal(err)
		}
	}
}
