package kvcache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGrowCoversTheTokensAsked(t *testing.T) {
	p := NewPool(4, 16)
	table, ok := p.Grow(nil, 17)
	require.True(t, ok)
	require.Len(t, table, 2)
	table, ok = p.Grow(table, 32)
	require.True(t, ok)
	require.Len(t, table, 2, "32 tokens fit two blocks of 16")
	require.Equal(t, 2, p.Free())
}

func TestGrowThatDoesNotFitChangesNothing(t *testing.T) {
	p := NewPool(2, 16)
	held, ok := p.Grow(nil, 16)
	require.True(t, ok)
	table, ok := p.Grow(held, 49)
	require.False(t, ok)
	require.Equal(t, held, table)
	require.Equal(t, 1, p.Free())
}

func TestReleaseRefusesBlocksThatAreNotHeld(t *testing.T) {
	p := NewPool(4, 16)
	table, _ := p.Grow(nil, 32)
	for name, bad := range map[string][]int32{
		"unknown":   {9},
		"negative":  {-1},
		"free":      {3},
		"twice":     {table[0], table[0]},
		"half good": {table[0], 3},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, p.Release(bad))
			require.Equal(t, 2, p.Free(), "a refused release changes nothing")
		})
	}
	require.NoError(t, p.Release(table))
	require.Error(t, p.Release(table), "a second release of the same blocks")
}

// The reference is a set: whatever the pool hands out must come from it and nothing else.
func TestRandomUseKeepsEveryBlockInOnePlace(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p, owner := NewPool(37, 16), map[int32]int{}
		tables := make([][]int32, 9)
		for range 400 {
			i := rng.IntN(len(tables))
			if rng.IntN(3) == 0 {
				require.NoError(t, p.Release(tables[i]))
				for _, id := range tables[i] {
					delete(owner, id)
				}
				tables[i] = nil
				continue
			}
			had := len(tables[i])
			grown, ok := p.Grow(tables[i], (had+rng.IntN(6))*16)
			if !ok {
				require.Len(t, grown, had)
				continue
			}
			for _, id := range grown[had:] {
				_, taken := owner[id]
				require.False(t, taken, "seed %d: block %d handed out twice", seed, id)
				owner[id] = i
			}
			tables[i] = grown
			require.Equal(t, 37-len(owner), p.Free())
		}
	}
}
