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

func TestHostedCountsTokensInHostMemory(t *testing.T) {
	keys := []Key{{Key: 1, Tokens: 100}, {Key: 2, Tokens: 200}, {Key: 3, Tokens: 300}, {Key: 4, Tokens: 400}}
	p := &Prefixes{}
	p.Change([]uint64{1, 2, 3, 4}, nil, 3, 4, 99)
	require.EqualValues(t, 200, p.Hosted(keys, 400), "those after the second")
	require.EqualValues(t, 100, p.Hosted(keys, 300))
	require.Zero(t, p.Hosted(keys, 200), "these are on the device")
	require.Zero(t, p.Hosted(nil, 400))
	require.Zero(t, (*Prefixes)(nil).Hosted(keys, 400))
	p.Change([]uint64{1, 2, 3}, nil, 1, 2, 3)
	require.EqualValues(t, 400, p.Hosted(keys, 400), "all moved there")
	p.Change([]uint64{1, 2, 3, 4}, nil)
	require.Zero(t, p.Hosted(keys, 400), "all came back")
	p.Change([]uint64{4}, nil, 4)
	p.Change(nil, []uint64{4})
	require.Zero(t, p.Hosted(keys, 400), "it is gone")
	require.Equal(t, 3, p.Len())
	p.Change([]uint64{3}, nil, 3)
	p.Drop()
	require.Zero(t, p.Hosted(keys, 400))
}

func TestPickPrefersPrefixesOnTheDevice(t *testing.T) {
	for name, tc := range map[string]struct {
		hosted [2]bool // by worker: whether it has the prefix in host memory
		want   int
	}{
		"the first has it on the device":  {[2]bool{false, true}, 0},
		"the second has it on the device": {[2]bool{true, false}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			indexes := &Indexes{}
			workers := make([]Worker, 2)
			for i := range workers {
				p := indexes.Prefixes("m", "d")
				hosted := []uint64{7}
				if !tc.hosted[i] {
					hosted = nil
				}
				p.Change([]uint64{7}, nil, hosted...)
				workers[i] = Worker{
					ID: string(rune('a' + i)), Connected: true, State: Ready, Load: &Load{},
					Models: []Model{{Name: "m", Digest: "d", Ready: true, MaxSequences: 16, Prefixes: p}},
				}
			}
			s := NewSnapshot(true, workers)
			for range 20 {
				c, err := Pick(&s, Request{Model: "m", Prompt: 8000, Keys: []Key{{Key: 7, Tokens: 8000}}})
				require.NoError(t, err)
				require.Equal(t, tc.want, c.Index)
			}
		})
	}
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
