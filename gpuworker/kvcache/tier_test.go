package kvcache

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTierHoldsWhatItSays(t *testing.T) {
	// Random sequences that share beginnings, end, are forgotten, and whose steps are refused.
	for name, cfg := range stages() {
		t.Run(name, func(t *testing.T) {
			did := TierStats{}
			for seed := range uint64(40) {
				rng := rand.New(rand.NewPCG(seed, 3))
				s := newStage(t, cfg)
				for range 150 {
					s.act(rng)
					s.check()
				}
				for len(s.live) > 0 {
					s.end(s.live[0])
				}
				s.check()
				stats := s.c.Stats().Tier
				did.Recalls += stats.Recalls
				did.Evictions += stats.Evictions
				did.Dropped += stats.Dropped
				for kind := range kinds {
					did.Out[kind] += stats.Out[kind]
					did.In[kind] += stats.In[kind]
				}
			}
			require.Greater(t, did.Recalls, uint64(20))
			require.Greater(t, did.Evictions, uint64(20))
			require.Positive(t, did.Dropped)
			for kind, n := range []int{cfg.Tier.Blocks, cfg.Tier.WindowBlocks, cfg.Tier.States} {
				require.Equal(t, n > 0, did.Out[kind] > 20, "copies out of kind %d: %d", kind, did.Out[kind])
				require.Equal(t, n > 0, did.In[kind] > 5, "copies in of kind %d: %d", kind, did.In[kind])
			}
		})
	}
}

func TestEvictedPrefixesComeBack(t *testing.T) {
	for name, cfg := range stages() {
		if name == "small" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			s := newStage(t, cfg)
			s.run(numbers(0, 12))
			s.run(numbers(100, 17))
			require.Empty(t, s.c.Match(Root{}, numbers(0, 12)).Blocks, "another prompt displaced it")
			p := s.start(numbers(0, 12), true)
			require.Equal(t, 5, p.table.Shared)
			s.check()
			require.EqualValues(t, 1, s.c.Stats().Tier.Recalls)
			require.EqualValues(t, 10, s.c.Stats().Tier.Tokens)
		})
	}
}

func TestRefusedCopiesAreComputedAgain(t *testing.T) {
	s := newStage(t, Config{Blocks: 9, BlockSize: 2, Tier: TierConfig{Blocks: 12}})
	s.run(numbers(0, 12))
	p := s.start(numbers(100, 17), true)
	require.True(t, s.compute(p, 17))
	require.NotEmpty(t, s.list)
	s.refuse()
	require.Empty(t, s.list)
	require.Len(t, s.c.tier.of[Block].free, s.c.TierTotal().Blocks, "the device may have lacked memory")
	require.NotZero(t, s.c.TierTotal())
	s.c.ShrinkTier()
	require.Zero(t, s.c.TierTotal())
	require.False(t, s.c.CopiesRefused(), "no planned copy is left")
	s.check()
	require.Zero(t, s.c.TierUsed())
	s.submit()
	s.end(p)
	again := s.start(numbers(0, 12), true)
	require.Zero(t, again.table.Shared)
	require.Empty(t, s.c.tier.of[Block].free, "no entry was ever written, so that the tier has none now")
}

func TestCopiesAreNotReadBeforeTheirStep(t *testing.T) {
	// The copy of a block is owed, then planned, then submitted. Only then a sequence starts with it.
	s := newStage(t, Config{Blocks: 4, BlockSize: 2, Tier: TierConfig{Blocks: 4}})
	ids := numbers(0, 6)
	s.run(ids)
	other := s.start(numbers(100, 8), true)
	longer := func() int {
		table := &Table{}
		more, _ := s.c.Longer(table, Root{}, ids)
		return more.Tokens
	}
	require.True(t, s.c.Grow(other.table, 8))
	require.Zero(t, longer(), "the blocks still have the content")
	require.Empty(t, s.list)
	require.True(t, s.compute(other, 2))
	require.True(t, s.compute(other, 6))
	require.Len(t, s.list, 3)
	require.Zero(t, longer())
	s.submit()
	require.Equal(t, 4, longer())
	s.end(other)
	s.check()
}

func TestLostContentWithdrawsLongerKeys(t *testing.T) {
	// The beginning of a prefix is overwritten in a step without room for its copy, after its end
	// was copied. No sequence can start with the end, which leaves the tier, and no key says that
	// it can.
	for name, lose := range map[string]func(*stage){
		"no room":   func(s *stage) { s.room = 0 },
		"no memory": func(*stage) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, Config{Blocks: 4, BlockSize: 2, Tier: TierConfig{Blocks: 8}})
			p := s.start(numbers(0, 8), true)
			s.c.Name(p.table, []Key{{Key: 1, Tokens: 2}, {Key: 2, Tokens: 4}, {Key: 3, Tokens: 6}, {Key: 4, Tokens: 8}})
			require.True(t, s.compute(p, 8))
			s.end(p)
			s.c.Changes()
			other := s.start(numbers(100, 8), true)
			require.True(t, s.c.Grow(other.table, 8))
			require.True(t, s.compute(other, 4))
			s.submit()
			_, removed, _ := s.c.Changes()
			require.Empty(t, removed)
			require.Equal(t, 4, s.c.TierUsed().Blocks)
			lose(s)
			require.True(t, s.compute(other, 4))
			s.refuse()
			s.check()
			_, removed, _ = s.c.Changes()
			require.Equal(t, []uint64{1, 2, 3, 4}, removed)
			require.Empty(t, s.c.All())
			require.Zero(t, s.c.TierUsed())
			require.EqualValues(t, 2, s.c.Stats().Tier.Dropped)
			s.check()
		})
	}
}

func TestClaimsKeepTheEntriesBelow(t *testing.T) {
	// The beginning of a prefix is lost while a sequence is to compute it. That sequence goes on with
	// the copies of the end. If it ends before, the copies leave the tier.
	for name, computes := range map[string]bool{"computed": true, "given up": false} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, Config{Blocks: 4, BlockSize: 2, Tier: TierConfig{Blocks: 8}})
			s.run(numbers(0, 8))
			other := s.start(numbers(100, 8), true)
			require.True(t, s.c.Grow(other.table, 8))
			require.True(t, s.compute(other, 4))
			s.submit()
			p := s.start(numbers(0, 9), false)
			s.c.Claim(p.table, Root{}, p.ids)
			require.True(t, s.compute(other, 4))
			s.refuse()
			require.False(t, s.c.tier.gap, "no entry is unreachable")
			s.c.Changes()
			require.Equal(t, 2, s.c.TierUsed().Blocks)
			s.end(other)
			if computes {
				require.True(t, s.compute(p, 4))
				s.submit()
				s.goOn(p)
				require.Equal(t, 8, p.computed)
			} else {
				s.end(p)
				s.c.Changes()
				require.Zero(t, s.c.TierUsed())
			}
			s.check()
		})
	}
}

func TestDroppedWindowBlocksAndStatesAreCounted(t *testing.T) {
	for name, cfg := range map[string]Config{
		"windows": {Blocks: 9, BlockSize: 2, Window: 3, WindowBlocks: 4, Tier: TierConfig{Blocks: 12, WindowBlocks: 7}},
		"states":  {Blocks: 9, BlockSize: 2, States: 1, Tier: TierConfig{Blocks: 20, States: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, cfg)
			p := s.start(numbers(0, 6), true)
			require.True(t, s.compute(p, 6))
			s.submit()
			s.end(p)
			require.Zero(t, s.c.Stats().Tier.Dropped)
			s.room = 0
			p = s.start(numbers(100, 6), true)
			require.True(t, s.compute(p, 6))
			s.end(p)
			require.Positive(t, s.c.Stats().Tier.Dropped)
			require.Empty(t, s.list)
			s.check()
		})
	}
}

func TestRecallsInPartsBringTheWhole(t *testing.T) {
	// A step has few copies. A sequence begins with a part of its prefix, computes a block, and
	// goes on with copies. It counts as one recall.
	for name, cfg := range stages() {
		if name == "small" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for _, n := range []*int{&cfg.Tier.Blocks, &cfg.Tier.WindowBlocks, &cfg.Tier.States} {
				*n *= 4
			}
			s := newStage(t, cfg)
			s.run(numbers(0, 15))
			s.run(numbers(100, 17))
			s.most = 4
			p := s.start(numbers(0, 15), true)
			require.Positive(t, p.computed)
			recalled := p.computed
			recalled += s.recallTo(p, 14)
			require.GreaterOrEqual(t, recalled, 10, "of 14")
			stats := s.c.Stats().Tier
			require.EqualValues(t, 1, stats.Recalls)
			require.EqualValues(t, recalled, stats.Tokens)
			s.end(p)
			s.check()
		})
	}
}

// recallTo computes a block and goes on with the recall in turn, until `end` tokens are there. It
// returns how many were recalled.
func (s *stage) recallTo(p *play, end int) (recalled int) {
	s.t.Helper()
	for p.computed < end {
		s.submit()
		require.True(s.t, s.c.Grow(p.table, end+1))
		require.True(s.t, s.compute(p, 2))
		s.submit()
		before := p.computed
		s.goOn(p)
		recalled += p.computed - before
		s.check()
	}
	return recalled
}

func TestRecallsInPartsKeepTheirRest(t *testing.T) {
	// The tier is full. The blocks that a sequence needs for the first part of its prefix displace
	// older content, but not the rest of that prefix.
	for _, most := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d copies a step", most), func(t *testing.T) {
			s := newStage(t, Config{Blocks: 20, BlockSize: 2, Tier: TierConfig{Blocks: 35}})
			s.run(numbers(0, 33))
			s.run(numbers(1000, 39))
			s.run(numbers(2000, 39))
			require.Equal(t, 35, s.c.TierUsed().Blocks)
			s.most = most
			p := s.start(numbers(0, 33), true)
			recalled := p.computed
			recalled += s.recallTo(p, 32)
			steps := (16 + most) / (most + 1) // each but the last computes a block
			require.Equal(t, 32-2*(steps-1), recalled)
			require.Positive(t, s.c.Stats().Tier.Evictions)
		})
	}
}

func TestKeysSayTheirTier(t *testing.T) {
	for name, cfg := range map[string]Config{
		"blocks": {Blocks: 6, BlockSize: 2, Tier: TierConfig{Blocks: 12}},
		"states": {Blocks: 6, BlockSize: 2, States: 1, Tier: TierConfig{Blocks: 12, States: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, cfg)
			ids := numbers(0, 9)
			p := s.start(ids, true)
			s.c.Name(p.table, []Key{{Key: 7, Tokens: 8}})
			require.True(t, s.compute(p, 9))
			s.submit()
			s.end(p)
			added, removed, _ := s.c.Changes()
			require.Equal(t, []uint64{7}, added)
			require.Empty(t, removed)
			require.False(t, s.c.OnHost(7))
			s.run(numbers(100, 12))
			added, removed, _ = s.c.Changes()
			require.Equal(t, []uint64{7}, added, "it moved")
			require.Empty(t, removed)
			require.True(t, s.c.OnHost(7))
			require.Equal(t, []uint64{7}, s.c.All())
			s.end(s.start(ids, true))
			require.False(t, s.c.OnHost(7))
			s.run(numbers(100, 12))
			s.run(numbers(200, 12))
			s.run(numbers(300, 12))
			_, removed, _ = s.c.Changes()
			require.Equal(t, []uint64{7}, removed)
			require.False(t, s.c.OnHost(7))
		})
	}
}
