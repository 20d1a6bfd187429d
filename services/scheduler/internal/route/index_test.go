package route

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// prefixKeys returns n keys of one request, with tokens between them, and their hashes.
func prefixKeys(n int, tokens int64, random *rand.Rand) (keys []Key, raw []uint64) {
	for i := range n {
		raw = append(raw, random.Uint64())
		keys = append(keys, Key{Key: raw[i], Tokens: int64(i+1) * tokens})
	}
	return keys, raw
}

func TestLookupAgreesWithEveryWorker(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		n := 1 + random.IntN(60)
		keys, raw := prefixKeys(n, 1+random.Int64N(100), random)
		var indexes Indexes
		var c mapping
		var sets []*Prefixes
		for i := range 1 + random.IntN(40) {
			p := indexes.Prefixes("m", "d")
			p.Change(raw[:random.IntN(n+1)], nil)
			p.Change([]uint64{random.Uint64()}, []uint64{random.Uint64()})
			var number int
			c.index, number = p.member()
			require.Equal(t, i, number)
			c.entries = append(c.entries, int32(i+1))
			sets = append(sets, p)
		}
		out := make([]int64, len(sets))
		l := lookup{mapping: c, keys: keys, out: out}
		l.run()
		most := int64(0)
		want := make([]int64, len(sets))
		for i, p := range sets {
			if has := p.Longest(raw); has > 0 {
				want[i] = keys[has-1].Tokens
			}
			most = max(most, want[i])
		}
		require.Equal(t, most, slices.Max(out), "the longest is exact")
		for i := range sets {
			require.LessOrEqual(t, out[i], want[i])
			require.LessOrEqual(t, want[i]-out[i], max(most/grain, 0), "of %v found %v", want, out)
		}
		for _, p := range sets {
			p.Drop()
		}
		require.Zero(t, indexes.Len())
		require.Empty(t, indexes.mu.byModel, "an index without members is removed")
	}
}

func TestIndexRemovesEvictedKeys(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	var indexes Indexes
	sets := []*Prefixes{indexes.Prefixes("m", "d"), indexes.Prefixes("m", "d"), indexes.Prefixes("m", "d")}
	naive := make([]map[uint64]bool, len(sets))
	for i := range naive {
		naive[i] = map[uint64]bool{}
	}
	for range 20_000 {
		i, key := random.IntN(len(sets)), random.Uint64N(200)
		if random.IntN(2) == 0 {
			sets[i].Change([]uint64{key}, nil)
			naive[i][key] = true
		} else {
			sets[i].Change(nil, []uint64{key})
			delete(naive[i], key)
		}
	}
	held := 0
	for key := range uint64(200) {
		out := make([]int64, len(sets))
		l := lookup{mapping: mapping{index: sets[0].index, entries: []int32{1, 2, 3}}, keys: []Key{{key, 9}}, out: out}
		l.run()
		for i := range sets {
			require.Equal(t, naive[i][key], out[i] == 9)
			if naive[i][key] {
				held++
			}
		}
	}
	require.EqualValues(t, held, indexes.Len())
}

func TestIndexReusesMembers(t *testing.T) {
	var indexes Indexes
	a, b := indexes.Prefixes("m", "d"), indexes.Prefixes("m", "d")
	a.Change([]uint64{1}, nil)
	a.Drop()
	a.Change([]uint64{2}, nil)
	a.Expect([]Key{{3, 1}})
	a.Drop()
	require.Zero(t, indexes.Len(), "a dropped set accepts no keys")
	c := indexes.Prefixes("m", "d")
	require.Equal(t, a.number, c.number)
	require.NotEqual(t, b.number, c.number)
	require.NotSame(t, b.index, indexes.Prefixes("m", "other").index)
}

func TestIndexesShareOneBound(t *testing.T) {
	var indexes Indexes
	a, b := indexes.Prefixes("m", "d"), indexes.Prefixes("n", "d")
	indexes.held.Store(MaxHeld - 2)
	a.Change([]uint64{1}, nil)
	b.Change([]uint64{2, 3}, nil)
	require.Equal(t, 1, b.Len(), "keys beyond the bound are left out")
	a.Change(nil, []uint64{1})
	b.Change([]uint64{3}, nil)
	require.Equal(t, 2, b.Len())
	require.EqualValues(t, MaxHeld, indexes.Len())
}

func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	var indexes Indexes
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 0))
			for range 300 {
				p := indexes.Prefixes("m", "d")
				p.Change([]uint64{random.Uint64N(50)}, []uint64{random.Uint64N(50)})
				p.Expect([]Key{{1, 10}, {random.Uint64N(50), 20}})
				l := lookup{mapping: mapping{index: p.index, entries: []int32{1, 2, 3, 4}}, keys: []Key{{1, 10}, {2, 20}}, out: make([]int64, 4)}
				l.run()
				p.Unexpect([]Key{{1, 10}})
				p.Drop()
			}
		})
	}
	work.Wait()
	require.Zero(t, indexes.Len())
}
