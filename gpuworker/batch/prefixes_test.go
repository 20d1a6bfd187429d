package batch

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrefixesReturnWhatIsNew(t *testing.T) {
	// Each reader of prefixes gets exactly the changes since its version.
	p := newPrefixes()
	at, reset, added, removed := p.since(0)
	require.Zero(t, at)
	require.False(t, reset)
	require.Empty(t, added)
	require.Empty(t, removed)

	p.record([]uint64{3, 5}, nil)
	at, reset, added, removed = p.since(0)
	require.False(t, reset)
	require.Equal(t, []uint64{3, 5}, added)
	require.Empty(t, removed)

	p.record([]uint64{7}, []uint64{3})
	_, reset, added, removed = p.since(at)
	require.False(t, reset)
	require.Equal(t, []uint64{7}, added)
	require.Equal(t, []uint64{3}, removed)

	_, reset, added, removed = p.since(0)
	require.False(t, reset)
	require.Equal(t, []uint64{5, 7}, added, "what came and went is not told to who never heard of it")
	require.Empty(t, removed)

	_, reset, added, _ = p.since(99)
	require.True(t, reset, "no such number was given: it is another loop's")
	require.Equal(t, []uint64{5, 7}, added)

	p.replace([]uint64{11})
	for _, since := range []uint64{0, at} {
		_, reset, added, _ = p.since(since)
		require.True(t, reset)
		require.Equal(t, []uint64{11}, added)
	}
}

func TestPrefixReadersConverge(t *testing.T) {
	// Readers that poll at different rates end with the cached set, and the stored changes are
	// bounded.
	rng := rand.New(rand.NewPCG(1, 1))
	p := newPrefixes()
	now := map[uint64]bool{}
	type reader struct {
		at    uint64
		knows map[uint64]bool
	}
	readers := make([]reader, 5)
	resets := 0
	for round := range 30_000 {
		var added, removed []uint64
		for range rng.IntN(4) {
			switch key := rng.Uint64N(300); {
			case slices.Contains(added, key) || slices.Contains(removed, key):
			case now[key]:
				removed = append(removed, key)
				delete(now, key)
			default:
				added = append(added, key)
				now[key] = true
			}
		}
		if rng.IntN(20_000) == 0 {
			all := []uint64{}
			for key := range now {
				all = append(all, key)
			}
			p.replace(all)
		} else {
			p.record(added, removed)
		}
		require.LessOrEqual(t, len(p.mu.changes), prefixMemory)
		i := rng.IntN(len(readers))
		if round%(1<<(3*i)) != 0 { // the last one comes rarely
			continue
		}
		r := &readers[i]
		at, reset, came, went := p.since(r.at)
		if reset || r.knows == nil {
			r.knows = map[uint64]bool{}
			resets++
		}
		for _, key := range came {
			require.False(t, r.knows[key])
			r.knows[key] = true
		}
		for _, key := range went {
			require.True(t, r.knows[key])
			delete(r.knows, key)
		}
		r.at = at
		require.Equal(t, now, r.knows)
	}
	require.Greater(t, resets, 5)
}
