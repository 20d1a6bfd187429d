package route

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLongestFindsTheLongestPrefix(t *testing.T) {
	p := &Prefixes{}
	p.Change([]uint64{1, 2, 3, 5}, nil)
	for name, tc := range map[string]struct {
		keys []uint64
		want int
	}{
		"no prefixes":                           {nil, 0},
		"none of them":                          {[]uint64{7, 8}, 0},
		"the first":                             {[]uint64{1, 8}, 1},
		"all":                                   {[]uint64{1, 2, 3}, 3},
		"a longer one whose beginning was lost": {[]uint64{7, 8, 5, 9}, 3},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.want, p.Longest(tc.keys)) })
	}
	p.Change([]uint64{9, 2}, []uint64{1, 2, 77})
	require.Equal(t, 4, p.Len(), "2 was removed and added again")
	require.Equal(t, 1, p.Longest([]uint64{2, 1}))
	require.Zero(t, (*Prefixes)(nil).Longest([]uint64{1}))
	require.Zero(t, (*Prefixes)(nil).Len())
}

func TestPrefixesAreBounded(t *testing.T) {
	p := &Prefixes{}
	keys := make([]uint64, MaxPrefixes+10)
	for i := range keys {
		keys[i] = uint64(i)
	}
	p.Change(keys, nil)
	require.Equal(t, MaxPrefixes, p.Len())
	p.Change([]uint64{1 << 40}, keys[:5])
	require.Equal(t, MaxPrefixes-4, p.Len(), "a removed key makes room")
}

func TestPrefixesAreSafeForConcurrentUse(t *testing.T) {
	p := &Prefixes{}
	var work sync.WaitGroup
	for worker := range 4 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 0))
			for range 1000 {
				p.Change([]uint64{random.Uint64N(50)}, []uint64{random.Uint64N(50)})
				require.LessOrEqual(t, p.Longest([]uint64{1, 2, 3}), 3)
			}
		})
	}
	work.Wait()
	require.LessOrEqual(t, p.Len(), 50)
}

func TestNewerPrefixesDisplaceExpectedOnes(t *testing.T) {
	var indexes Indexes
	p := indexes.Prefixes("m", "d")
	keys := make([]Key, maxExpected+10)
	for i := range keys {
		keys[i] = Key{Key: uint64(i), Tokens: 1}
	}
	p.Expect(keys)
	require.EqualValues(t, maxExpected, indexes.Len())
	require.Zero(t, p.Len(), "none was reported")
	p.Change([]uint64{20, 30}, nil)
	require.EqualValues(t, maxExpected, indexes.Len(), "reported keys were expected")
	p.Change(nil, []uint64{20, 40})
	require.EqualValues(t, maxExpected-2, indexes.Len(), "a removed key is no longer expected")
	p.Unexpect(keys)
	require.EqualValues(t, 1, indexes.Len(), "reported keys stay")
	(*Prefixes)(nil).Expect(keys)
	(*Prefixes)(nil).Unexpect(keys)
	(*Prefixes)(nil).Drop()
	(&Prefixes{}).Expect(keys)
}
