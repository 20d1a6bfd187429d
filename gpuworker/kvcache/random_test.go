package kvcache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every operation of a random script keeps the invariants and looks the same as in the naive
// implementation, with good hashes and with colliding ones.
func TestRandomScriptsAgreeWithTheNaiveCache(t *testing.T) {
	did, operations := map[string]int{}, 0
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 7))
		bytes := make([]byte, 1500)
		for i := range bytes {
			bytes[i] = byte(rng.Uint32())
		}
		p := newPlayer(t, bytes)
		p.play()
		for what, n := range p.did {
			did[what] += n
		}
		did["eviction"] += int(p.c.Stats().Evictions)
		did["window eviction"] += int(p.c.Stats().WindowEvictions)
		operations += p.operations
	}
	require.Greater(t, operations, 20_000)
	for _, what := range []string{"hit", "claim", "wait", "full", "copy", "fork", "rollback", "reset", "eviction", "twin", "forget", "withdrawal",
		"window hit", "window miss", "window full", "window copy", "window eviction", "slide"} {
		require.Greater(t, did[what], 20, "the scripts hardly ever come to: %s", what)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{4, 1, 2, 3, 1})
	f.Add([]byte{20, 3, 0, 7, 0, 1, 1, 0, 0, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 12, 0, 5, 4, 0, 12, 1, 3, 5, 0, 2, 12, 0, 3, 3, 0})
	f.Fuzz(func(t *testing.T, bytes []byte) {
		if len(bytes) > 400 {
			t.Skip("long scripts only repeat what short ones do")
		}
		newPlayer(t, bytes).play()
	})
}
