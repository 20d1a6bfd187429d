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
	at, reset, added, removed, _ := p.since(0)
	require.Zero(t, at)
	require.False(t, reset)
	require.Empty(t, added)
	require.Empty(t, removed)

	on := func(hosted ...uint64) func(uint64) bool {
		return func(key uint64) bool { return slices.Contains(hosted, key) }
	}
	p.record([]uint64{3, 5}, nil, on())
	at, reset, added, removed, hosted := p.since(0)
	require.Empty(t, hosted)
	require.False(t, reset)
	require.Equal(t, []uint64{3, 5}, added)
	require.Empty(t, removed)

	p.record([]uint64{7}, []uint64{3}, on(7))
	_, reset, added, removed, hosted = p.since(at)
	require.False(t, reset)
	require.Equal(t, []uint64{7}, added)
	require.Equal(t, []uint64{7}, hosted)
	require.Equal(t, []uint64{3}, removed)

	_, reset, added, removed, _ = p.since(0)
	require.False(t, reset)
	require.Equal(t, []uint64{5, 7}, added, "what came and went is not told to who never heard of it")
	require.Empty(t, removed)

	_, reset, added, _, hosted = p.since(99)
	require.True(t, reset, "no such number was given: it is another loop's")
	require.Equal(t, []uint64{5, 7}, added)
	require.Equal(t, []uint64{7}, hosted)

	at, _, _, _, _ = p.since(at)
	p.record([]uint64{5, 7}, nil, on(5))
	_, _, added, _, hosted = p.since(at)
	require.Equal(t, []uint64{5, 7}, added, "both moved")
	require.Equal(t, []uint64{5}, hosted)
	p.record([]uint64{5, 7}, nil, on(7))
	_, _, added, _, _ = p.since(at)
	require.Empty(t, added, "and back")

	p.replace([]uint64{11}, on())
	for _, since := range []uint64{0, at} {
		_, reset, added, _, _ = p.since(since)
		require.True(t, reset)
		require.Equal(t, []uint64{11}, added)
	}
}

func TestPrefixReadersConverge(t *testing.T) {
	// Readers that poll at different rates end with the cached set, and the stored changes are
	// bounded.
	rng := rand.New(rand.NewPCG(1, 1))
	p := newPrefixes()
	now := map[uint64]bool{} // whether it is in host memory
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
			case rng.IntN(2) == 0:
				if _, cached := now[key]; cached {
					removed = append(removed, key)
				}
				delete(now, key)
			default:
				added = append(added, key)
				now[key] = rng.IntN(2) == 0
			}
		}
		if rng.IntN(20_000) == 0 {
			all := []uint64{}
			for key := range now {
				all = append(all, key)
			}
			p.replace(all, func(key uint64) bool { return now[key] })
		} else {
			p.record(added, removed, func(key uint64) bool { return now[key] })
		}
		require.LessOrEqual(t, len(p.mu.changes), prefixMemory)
		i := rng.IntN(len(readers))
		if round%(1<<(3*i)) != 0 { // the last one comes rarely
			continue
		}
		r := &readers[i]
		at, reset, came, went, hosted := p.since(r.at)
		if reset || r.knows == nil {
			r.knows = map[uint64]bool{}
			resets++
		}
		for _, key := range came {
			old, known := r.knows[key]
			r.knows[key] = slices.Contains(hosted, key)
			require.False(t, known && old == r.knows[key])
		}
		for _, key := range went {
			require.Contains(t, r.knows, key)
			delete(r.knows, key)
		}
		r.at = at
		require.Equal(t, now, r.knows)
	}
	require.Greater(t, resets, 5)
}
