package kvcache

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkStates checks that states are free, held or findable, and that nodes and states agree.
func checkStates(t *testing.T, c *Cache, holders map[int32]int) {
	t.Helper()
	s := &c.states
	at := map[int32]int32{} // states by node
	for n, x := range c.tree.nodes {
		require.True(t, x.state != 0 || x.hosted[State] != none || len(x.keys) == 0, "node %d has keys, and no sequence can start there", n)
		if x.stamp != 0 && x.state != 0 {
			require.True(t, x.block != none || x.hosted[Block] != none, "node %d has a state and no block", n)
			require.False(t, x.lost)
			at[x.state] = int32(n)
		}
	}
	for id := int32(1); int(id) < len(s.refs); id++ {
		require.EqualValues(t, holders[id], s.refs[id], "holders of state %d", id)
		node, findable := at[id]
		if !findable {
			node = none
		}
		require.Equal(t, node, s.nodeOf[id], "state %d", id)
		require.Equal(t, s.refs[id] == 0 && !findable, slices.Contains(s.free, id), "state %d is free", id)
		require.Equal(t, s.refs[id] == 0 && findable, slices.Contains(s.idle, id), "state %d may be evicted", id)
	}
	require.Equal(t, len(s.free)+len(s.idle), c.FreeStates())
	require.Equal(t, len(s.idle), c.CachedStates())
	require.Len(t, s.refs, 1+len(s.free)+len(s.idle)+len(holders))
}

func TestMatchStateEndsWhereAStateStands(t *testing.T) {
	c := New(Config{Blocks: 16, BlockSize: 4, States: 2})
	ids := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}
	owner, state, found := c.MatchState(Root{}, ids)
	require.Empty(t, owner.Blocks)
	require.Zero(t, state)
	require.Zero(t, found)
	require.True(t, c.Grow(owner, 13))
	require.NoError(t, c.Publish(owner, Root{}, ids, 13))
	first, ok := c.AllocState()
	require.True(t, ok)
	c.PublishState(owner, 8, first, false)
	require.NoError(t, c.DropState(first))
	for tokens, want := range map[int]bool{0: false, 4: false, 7: false, 8: true, 12: false, 16: false} {
		require.Equal(t, want, c.HasState(owner, Root{}, ids, tokens), "after %d tokens", tokens)
		require.Equal(t, want, c.HasState(&Table{}, Root{}, ids, tokens), "after %d tokens, not computed yet", tokens)
		require.False(t, c.HasState(&Table{}, Root{Salt: "other"}, ids, tokens))
	}
	again, state, found := c.MatchState(Root{}, ids)
	require.Equal(t, owner.Blocks[:2], again.Blocks, "no state stands after the third block")
	require.Equal(t, first, state)
	require.Equal(t, 12, found)
	require.NoError(t, c.DropState(state))
	require.NoError(t, c.Release(again))
	shorter, state, found := c.MatchState(Root{}, ids[:8])
	require.Zero(t, state, "a token is left to compute, so a state after all is of no use")
	require.Equal(t, 4, found)
	require.NoError(t, c.Release(shorter))

	second, ok := c.AllocState()
	require.True(t, ok)
	c.PublishState(owner, 7, second, false)
	c.PublishState(owner, 8, second, false)
	c.PublishState(owner, 16, second, false)
	require.NoError(t, c.DropState(second))
	_, state, _ = c.MatchState(Root{}, ids)
	require.Equal(t, first, state, "half a block, a block with a state and one that is not published take none")

	held, ok := c.AllocState()
	require.True(t, ok, "the second is free")
	_, ok = c.AllocState()
	require.False(t, ok, "both have holders")
	require.NoError(t, c.DropState(first))
	taken, ok := c.AllocState()
	require.True(t, ok)
	require.Equal(t, first, taken, "a findable state gives way")
	require.EqualValues(t, 1, c.Stats().StateEvictions)
	_, state, found = c.MatchState(Root{}, ids)
	require.Zero(t, state)
	require.Equal(t, 12, found, "its blocks stay")
	require.NoError(t, c.DropState(held))
	require.Error(t, c.DropState(held))
	require.Error(t, c.DropState(0))
	require.Error(t, c.DropState(3))
}

func TestForgetLosesStates(t *testing.T) {
	c := New(Config{Blocks: 8, BlockSize: 4, States: 1})
	ids := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	owner := c.Match(Root{}, ids)
	require.True(t, c.Grow(owner, 9))
	require.NoError(t, c.Publish(owner, Root{}, ids, 9))
	id, _ := c.AllocState()
	c.PublishState(owner, 8, id, false)
	c.Forget(owner)
	checkStates(t, c, map[int32]int{id: 1})
	c.PublishState(owner, 8, id, false)
	checkStates(t, c, map[int32]int{id: 1})
	require.NoError(t, c.DropState(id))
	require.Equal(t, 1, c.FreeStates())
}

func TestKeysNeedAStateNearby(t *testing.T) {
	c := New(Config{Blocks: 220, BlockSize: 16, States: 2})
	ids := run(1, 3200)
	keys := []Key{{100, 100}, {170, 170}, {192, 192}, {210, 210}, {256, 256}, {257, 257}, {2000, 2000}, {2200, 2200}, {2400, 2400}}
	owner := &Table{}
	require.True(t, c.Grow(owner, len(ids)))
	c.Name(owner, keys)
	require.NoError(t, c.Publish(owner, Root{}, ids, len(ids)))
	require.Empty(t, c.All(), "no sequence can start with these blocks")
	save := func(at int) int32 {
		id, ok := c.AllocState()
		require.True(t, ok)
		c.PublishState(owner, at, id, false)
		require.NoError(t, c.DropState(id))
		checkStates(t, c, nil)
		return id
	}
	save(192)
	require.Equal(t, []uint64{192, 210, 256}, c.All(), "those of 192 to 256 tokens")
	save(2096)
	require.Equal(t, []uint64{192, 210, 256, 2200}, c.All(), "an eighth of a long key may be left to compute")
	save(160)
	require.Equal(t, []uint64{100, 170, 192, 210, 2200}, c.All(), "and the last key before a state; the oldest state is gone")
	c.Name(&Table{Blocks: owner.Blocks[:12], Shared: 12}, []Key{{1, 50}, {2, 150}, {3, 175}, {4, 300}})
	require.Equal(t, []uint64{2, 3, 100, 170, 192, 210, 2200}, c.All(), "a sequence that starts with the state names its own")

	other := &Table{}
	require.True(t, c.Grow(other, 192))
	c.Name(other, []Key{{5, 165}, {6, 191}})
	require.NoError(t, c.Publish(other, Root{}, ids, 192))
	require.Equal(t, []uint64{2, 3, 5, 6, 100, 170, 192, 210, 2200}, c.All(), "and one that publishes its twin")
	c.Forget(owner)
	require.Empty(t, c.All())
	checkStates(t, c, nil)
}

// Random sequences save states, release them and displace each other's blocks.
func TestRandomStates(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		c := New(Config{Blocks: 12, BlockSize: 4, States: 1 + rng.IntN(4)})
		type sequence struct {
			table *Table
			ids   []int32
		}
		var live []sequence
		holders := map[int32]int{}
		hold := func(id int32) { holders[id]++ }
		drop := func(id int32) {
			require.NoError(t, c.DropState(id))
			if holders[id]--; holders[id] == 0 {
				delete(holders, id)
			}
		}
		for range 400 {
			switch rng.IntN(5) {
			case 0, 1:
				ids := make([]int32, 5+rng.IntN(20))
				for i := range ids {
					ids[i] = int32(i / 5 * rng.IntN(2))
				}
				table, state, found := c.MatchState(Root{}, ids)
				require.GreaterOrEqual(t, found, table.Shared*4)
				require.Equal(t, table.Shared > 0, state != 0)
				if state != 0 {
					require.Equal(t, c.nodeOf[table.Blocks[table.Shared-1]], c.states.nodeOf[state])
					hold(state)
				}
				if !c.Grow(table, len(ids)) {
					require.NoError(t, c.Release(table))
					continue
				}
				c.Name(table, []Key{{uint64(rng.IntN(9)), 1 + rng.IntN(20)}, {uint64(rng.IntN(9)), 1 + rng.IntN(20)}})
				require.NoError(t, c.Publish(table, Root{}, ids, len(ids)))
				live = append(live, sequence{table, ids})
			case 2:
				if id, ok := c.AllocState(); ok {
					hold(id)
					if len(live) > 0 {
						s := live[rng.IntN(len(live))]
						c.PublishState(s.table, rng.IntN(len(s.ids)+1)/4*4, id, false)
					}
				} else {
					require.NotEmpty(t, holders)
				}
			case 3:
				for id := range holders {
					drop(id)
					break
				}
			case 4:
				if len(live) > 0 {
					i := rng.IntN(len(live))
					if rng.IntN(8) == 0 {
						c.Forget(live[i].table)
					}
					require.NoError(t, c.Release(live[i].table))
					live = slices.Delete(live, i, i+1)
				}
			}
			checkStates(t, c, holders)
			tables := make([]*Table, len(live))
			for i := range live {
				tables[i] = live[i].table
			}
			check(t, c, tables)
		}
	}
}
