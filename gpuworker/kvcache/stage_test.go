package kvcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// stage is a cache with a host tier and with the content of its blocks and states: the ids up to
// the end of the block. Copies are done when they are planned, as a device does them in the order
// of the list.
type stage struct {
	t      *testing.T
	c      *Cache
	cfg    Config
	device [kinds]map[int32]string
	host   [kinds]map[int32]string
	list   []Copy // of the next step
	room   int    // copies that the next step can have
	most   int    // copies of a recall
	live   []*play
	held   map[int32]int // holders of states
}

// play is a sequence on a stage.
type play struct {
	ids      []int32
	table    *Table
	computed int
	state    int32 // with which it started
}

func newStage(t *testing.T, cfg Config) *stage {
	t.Helper()
	s := &stage{t: t, room: 1 << 20, most: 1 << 20, held: map[int32]int{}}
	for kind := range kinds {
		s.device[kind], s.host[kind] = map[int32]string{}, map[int32]string{}
	}
	cfg.Tier.Plan = func(m Copy) {
		if m.In {
			s.device[m.Kind][m.Dst] = s.host[m.Kind][m.Src]
		} else {
			s.host[m.Kind][m.Dst] = s.device[m.Kind][m.Src]
		}
		s.list = append(s.list, m)
	}
	cfg.Tier.Room = func() bool { return len(s.list) < s.room }
	s.cfg, s.c = cfg, New(cfg)
	return s
}

// text is the content of the block that ends with ids.
func text(ids []int32) string { return fmt.Sprint(ids) }

// start gives ids a table with the content of both tiers.
func (s *stage) start(ids []int32, recall bool) *play {
	p := &play{ids: ids}
	switch {
	case s.cfg.States > 0:
		p.table, p.state, _ = s.c.MatchState(Root{}, ids)
		s.hold(p.state)
	case s.cfg.Window > 0:
		p.table, _ = s.c.MatchWindow(Root{}, ids)
	default:
		p.table = s.c.Match(Root{}, ids)
	}
	if recall {
		s.recall(p)
	}
	p.computed = p.table.Shared * s.cfg.BlockSize
	s.live = append(s.live, p)
	return p
}

// recall extends the table of a sequence by at most s.most copies.
func (s *stage) recall(p *play) {
	more, ok := s.c.Longer(p.table, Root{}, p.ids)
	if !ok {
		return
	}
	part := s.c.Cut(p.table, more, s.most)
	longest := p.table.Shared * s.cfg.BlockSize
	for end := longest + s.cfg.BlockSize; end <= more.Tokens; end += s.cfg.BlockSize {
		if short, _ := s.c.Longer(p.table, Root{}, p.ids[:end+1]); short.Copies() <= s.most {
			longest = max(longest, short.Tokens)
		}
	}
	require.Equal(s.t, longest, part.Tokens, "of %d with %d copies", more.Tokens, s.most)
	before := p.table.Shared
	state, ok := s.c.Recall(p.table, part)
	if !ok {
		return
	}
	require.Equal(s.t, part.Tokens, p.table.Shared*s.cfg.BlockSize)
	require.Greater(s.t, p.table.Shared, before)
	if s.cfg.States > 0 {
		s.drop(p.state)
		p.state = state
		s.hold(state)
	}
}

// goOn recalls more for a sequence that began with less.
func (s *stage) goOn(p *play) {
	if p.computed != p.table.Shared*s.cfg.BlockSize {
		return
	}
	s.c.Truncate(p.table)
	if s.cfg.Window > 0 {
		s.c.Slide(p.table, p.computed)
	}
	s.recall(p)
	p.computed = p.table.Shared * s.cfg.BlockSize
	if len(p.table.claims) > 0 {
		s.c.Claim(p.table, Root{}, p.ids)
	}
}

func (s *stage) hold(state int32) {
	if state != 0 {
		s.held[state]++
	}
}

func (s *stage) drop(state int32) {
	if state == 0 {
		return
	}
	if s.held[state]--; s.held[state] == 0 {
		delete(s.held, state)
	}
	require.NoError(s.t, s.c.DropState(state))
}

// compute writes and publishes the next n tokens of a sequence, if there are blocks.
func (s *stage) compute(p *play, n int) bool {
	size, end := s.cfg.BlockSize, min(p.computed+n, len(p.ids))
	if !s.c.Grow(p.table, end) {
		return false
	}
	if s.cfg.Window > 0 {
		s.c.Slide(p.table, p.computed)
		if !s.c.GrowWindow(p.table, end) {
			return false
		}
	}
	s.c.Overwrite(p.table, p.computed, end)
	for i := p.computed / size; i < s.c.BlocksFor(end); i++ {
		content := text(p.ids[:min((i+1)*size, end)])
		s.device[Block][p.table.Blocks[i]] = content
		if s.cfg.Window > 0 {
			s.device[WindowBlock][p.table.Window[i]] = content
		}
	}
	p.computed = end
	require.NoError(s.t, s.c.Publish(p.table, Root{}, p.ids, end))
	if at := end / size * size; s.cfg.States > 0 && at > 0 {
		if id, ok := s.c.AllocState(); ok {
			s.device[State][id] = text(p.ids[:at])
			s.c.PublishState(p.table, at, id, end < len(p.ids))
			require.NoError(s.t, s.c.DropState(id))
		}
	}
	return true
}

func (s *stage) end(p *play) {
	s.drop(p.state)
	require.NoError(s.t, s.c.Release(p.table))
	s.live = slices.DeleteFunc(s.live, func(other *play) bool { return other == p })
}

// submit is the engine's yes to the step with all copies. refuse is its no for want of memory.
func (s *stage) submit() {
	s.c.CopiesSubmitted()
	s.list = s.list[:0]
}

func (s *stage) refuse() {
	n := len(s.list)
	s.list = slices.DeleteFunc(s.list, func(m Copy) bool {
		if m.In || !s.c.Refuses(m.Kind, m.Dst) {
			return false
		}
		s.host[m.Kind][m.Dst] = "refused"
		return true
	})
	require.Equal(s.t, len(s.list) < n, s.c.CopiesRefused())
}

// check proves the invariants, and that each node has its own content wherever it says.
func (s *stage) check() {
	s.t.Helper()
	var tables []*Table
	for _, p := range s.live {
		tables = append(tables, p.table)
		for i := range p.table.Shared {
			require.Equal(s.t, text(p.ids[:(i+1)*s.cfg.BlockSize]), s.device[Block][p.table.Blocks[i]], "block %d of a table", i)
		}
		for i, b := range p.table.Window[:min(p.table.Shared, len(p.table.Window))] {
			if b != none {
				require.Equal(s.t, text(p.ids[:(i+1)*s.cfg.BlockSize]), s.device[WindowBlock][b], "window block %d of a table", i)
			}
		}
	}
	check(s.t, s.c, tables)
	if s.cfg.States > 0 {
		checkStates(s.t, s.c, s.held)
	}
	for n, x := range s.c.tree.nodes {
		if x.stamp == 0 {
			continue
		}
		var ids []int32
		for at := int32(n); at != none; at = s.c.tree.nodes[at].parent {
			ids = slices.Concat(s.c.tree.idsOf(at), ids)
		}
		want := text(ids)
		for kind, id := range [kinds]int32{x.block, x.window, x.state} {
			if id != none && (kind != int(State) || id != 0) {
				require.Equal(s.t, want, s.device[kind][id], "kind %d of node %d", kind, n)
			}
			e := x.hosted[kind]
			if e == none {
				continue
			}
			switch entries := &s.c.tier.of[kind]; entries.phase[e] {
			case owed:
				require.Equal(s.t, want, s.device[kind][entries.block[e]], "the content that a block owes")
			case planned, ready:
				require.Equal(s.t, want, s.host[kind][entries.first+e], "entry %d of kind %d", e, kind)
			default:
				s.t.Fatalf("entry %d of kind %d is absent", e, kind)
			}
		}
	}
}

// stages are configurations of the three kinds of models.
func stages() map[string]Config {
	return map[string]Config{
		"blocks":  {Blocks: 9, BlockSize: 2, HostBlocks: 3, Tier: TierConfig{Blocks: 8}},
		"small":   {Blocks: 9, BlockSize: 2, Tier: TierConfig{Blocks: 3}},
		"windows": {Blocks: 9, BlockSize: 2, HostBlocks: 1, Window: 3, WindowBlocks: 8, HostWindowBlocks: 2, Tier: TierConfig{Blocks: 12, WindowBlocks: 7}},
		"states":  {Blocks: 9, BlockSize: 2, States: 3, HostStates: 2, Tier: TierConfig{Blocks: 20, States: 10}},
	}
}

// act does one random thing.
func (s *stage) act(rng *rand.Rand) {
	switch n := rng.IntN(44); {
	case n < 10 && len(s.live) < 4:
		ids := make([]int32, 3+rng.IntN(11))
		for i := range ids {
			if ids[i] = int32(i); i >= 4 {
				ids[i] += 100 * int32(rng.IntN(2)) // so that sequences part, and meet again
			}
		}
		s.start(ids, rng.IntN(5) > 0)
	case n < 26 && len(s.live) > 0:
		s.compute(s.live[rng.IntN(len(s.live))], 1+rng.IntN(6))
	case n < 34 && len(s.live) > 0:
		s.end(s.live[rng.IntN(len(s.live))])
	case n == 34 && len(s.live) > 0 && rng.IntN(4) == 0:
		s.c.Forget(s.live[rng.IntN(len(s.live))].table)
	case n == 35 && rng.IntN(8) == 0:
		s.refuse()
	case n == 36:
		s.room = rng.IntN(20)
	case n == 37 && len(s.live) > 0 && s.cfg.States == 0:
		p := s.live[rng.IntN(len(s.live))]
		fork := s.c.Fork(p.table)
		require.NoError(s.t, s.c.Release(fork))
	case n == 38:
		s.most = rng.IntN(6)
	case n == 39 && len(s.live) > 0:
		s.goOn(s.live[rng.IntN(len(s.live))])
	case n == 40 && len(s.live) > 0:
		p := s.live[rng.IntN(len(s.live))]
		s.c.Claim(p.table, Root{}, p.ids)
	default:
		s.submit()
		s.room, s.most = 1<<20, 1<<20
		reachable := s.reachable()
		s.c.Changes()
		require.Equal(s.t, reachable, s.c.TierUsed().Blocks)
	}
}

// reachable counts the entries with which a sequence can start once those above them are copied,
// and the claimed blocks above them are computed.
func (s *stage) reachable() (n int) {
	for _, x := range s.c.tree.nodes {
		if x.stamp == 0 || x.hosted[Block] == none {
			continue
		}
		at := x.parent
		for at != none && (s.c.tree.nodes[at].block != none || s.c.tree.nodes[at].hosted[Block] != none || s.c.tree.nodes[at].claims > 0) {
			at = s.c.tree.nodes[at].parent
		}
		if at == none {
			n++
		}
	}
	return n
}

// run computes ids from their beginning and ends.
func (s *stage) run(ids []int32) {
	p := s.start(ids, true)
	for p.computed < len(ids) {
		require.True(s.t, s.compute(p, 2))
		s.submit()
	}
	s.end(p)
	s.check()
}

func numbers(from, n int32) (ids []int32) {
	for i := range n {
		ids = append(ids, from+i)
	}
	return ids
}
