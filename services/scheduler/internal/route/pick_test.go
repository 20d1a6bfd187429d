package route_test

import (
	"fmt"
	"math/rand/v2"
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

func BenchmarkPickAmong300Workers(b *testing.B) {
	s := fleetOf(300)
	b.ReportAllocs()
	for i := range b.N {
		if _, err := route.Pick(s, route.Request{Model: "m", Tokens: 1, Tie: uint64(i)}); err != nil {
			b.Fatal(err)
		}
	}
}
