package kvcache

import (
	"fmt"
	"slices"
)

// states tracks the saved states of a model whose layers carry one: ids 1 to Config.States. A state
// is free, or it has holders, or it is findable at a node of the tree, or both of these. A findable
// state without holders stays until Alloc needs it, least recently used first, or until the block
// of its node goes.
type states struct {
	free   []int32 // stack
	refs   []int32 // by id: number of holders
	nodeOf []int32 // by id: the node after whose tokens it stands, or none
	// interval is, by id, whether it was published as an interval state and no sequence started there.
	interval []bool
	idle     []int32 // findable states without holders, least recently used first
}

func newStates(n int) states {
	s := states{refs: make([]int32, n+1), nodeOf: slices.Repeat([]int32{none}, n+1), interval: make([]bool, n+1)}
	for id := int32(n); id > 0; id-- {
		s.free = append(s.free, id)
	}
	return s
}

// hasStates reports whether prefixes are found only where saved states stand.
func (c *Cache) hasStates() bool { return len(c.states.refs) > 1 }

// AllocState returns a state with one holder. If none is free, it evicts the findable state that
// was not used for longest; ok is false if every state has a holder.
func (c *Cache) AllocState() (id int32, ok bool) {
	s := &c.states
	if len(s.free) == 0 {
		if len(s.idle) == 0 {
			return 0, false
		}
		c.spillNow(State, s.nodeOf[s.idle[0]], s.idle[0], s.interval[s.idle[0]])
		c.loseState(s.idle[0])
		c.stats.stateEvictions.Add(1)
	}
	id = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.refs[id], s.interval[id] = 1, false
	c.countStates()
	return id, true
}

// HoldState adds a holder. A findable state is not an interval state from then on.
func (c *Cache) HoldState(id int32) {
	s := &c.states
	if s.refs[id] == 0 {
		s.idle = slices.DeleteFunc(s.idle, func(other int32) bool { return other == id })
	}
	s.refs[id]++
	s.interval[id] = false
	c.countStates()
}

// DropState removes a holder. After the last one the state stays if it is findable. It is an error
// if it has no holder, and nothing has changed then.
func (c *Cache) DropState(id int32) error {
	s := &c.states
	switch {
	case id < 1 || int(id) >= len(s.refs) || s.refs[id] == 0:
		return fmt.Errorf("drop state %d of %d: it has no holder", id, len(s.refs)-1)
	case s.refs[id] > 1:
		s.refs[id]--
	case s.nodeOf[id] == none:
		s.refs[id] = 0
		s.free = append(s.free, id)
	default:
		s.refs[id] = 0
		s.idle = append(s.idle, id)
	}
	c.countStates()
	return nil
}

// PublishState makes a state that the caller holds findable: it has read the first `tokens` ids of
// the table. Nothing changes unless these are whole blocks that the table has published, if they
// already have a state, or if Forget made them unfindable. An interval state is one in the middle of
// a prompt where no other sequence is known to start. In the host tier these do not displace the
// other states.
func (c *Cache) PublishState(t *Table, tokens int, id int32, interval bool) {
	blocks := tokens / c.blockSize
	if blocks == 0 || tokens%c.blockSize != 0 || blocks > t.Shared || c.states.nodeOf[id] != none {
		return
	}
	n := c.nodeOf[t.Blocks[blocks-1]]
	if x := &c.tree.nodes[n]; x.state == 0 && !x.lost {
		x.state, c.states.nodeOf[id], c.states.interval[id] = id, n, interval
		c.rekey(n)
		c.attachToState(t, tokens, n)
	}
}

// HasState reports whether a findable state stands after the first `tokens` ids of the sequence of t.
func (c *Cache) HasState(t *Table, r Root, ids []int32, tokens int) bool {
	blocks := tokens / c.blockSize
	switch {
	case blocks == 0 || tokens%c.blockSize != 0 || tokens > len(ids) || t.released:
		return false
	case blocks <= t.Shared:
		return c.tree.nodes[c.nodeOf[t.Blocks[blocks-1]]].state != 0
	}
	w, n := c.end(t, r), int32(none)
	for i := t.Shared; i < blocks; i++ {
		if n, _ = c.tree.step(w, c.part(ids, i)); n == none {
			return false
		}
		w = c.tree.walkFrom(n)
	}
	return c.tree.nodes[n].state != 0
}

// loseState makes a state unfindable. Its holders keep it. The keys that stood for it are
// withdrawn, unless the host tier has it.
func (c *Cache) loseState(id int32) {
	s := &c.states
	n := s.nodeOf[id]
	c.tree.nodes[n].state, s.nodeOf[id] = 0, none
	c.rekey(n)
	if s.refs[id] == 0 {
		s.idle = slices.DeleteFunc(s.idle, func(other int32) bool { return other == id })
		s.free = append(s.free, id)
	}
	c.countStates()
}

// MatchState is Match for a model whose layers carry states: the table ends where a state stands.
// It returns that state, which the caller then holds, or 0 with an empty table, and how many tokens
// Match would have found.
func (c *Cache) MatchState(r Root, ids []int32) (t *Table, state int32, found int) {
	t = &Table{}
	w := c.tree.root(r)
	var path []int32
	deepest := 0
	for i := range c.usable(len(ids)) {
		n, _ := c.tree.step(w, c.part(ids, i))
		if n == none || c.tree.nodes[n].block == none {
			break
		}
		path = append(path, n)
		if c.tree.nodes[n].state != 0 {
			deepest = len(path)
		}
		w = c.tree.walkFrom(n)
	}
	if deepest > 0 {
		t.Blocks = make([]int32, 0, c.BlocksFor(len(ids))+1)
		state = c.tree.nodes[path[deepest-1]].state
		c.HoldState(state)
	}
	for _, n := range path[:deepest] {
		t.Blocks = append(t.Blocks, c.hold(n))
	}
	t.Shared = len(t.Blocks)
	c.stats.recordMatch(len(ids), t.Shared*c.blockSize)
	c.count()
	return t, state, len(path) * c.blockSize
}

// FreeStates is how many states AllocState can return.
func (c *Cache) FreeStates() int { return int(c.freeStates.Load()) }

// CachedStates is how many of the FreeStates are findable. Two calls see two moments.
func (c *Cache) CachedStates() int { return int(c.idleStates.Load()) }

// countStates publishes the counts to other goroutines.
func (c *Cache) countStates() {
	c.freeStates.Store(int64(len(c.states.free) + len(c.states.idle)))
	c.idleStates.Store(int64(len(c.states.idle)))
}
