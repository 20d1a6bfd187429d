package kvcache

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// player turns bytes into operations, executes them on a Cache and on the naive one, and compares
// everything that is visible. It also plays the device: it writes, copies and reads the content of
// blocks as a step would.
type player struct {
	t      *testing.T
	bytes  []byte
	c      *Cache
	s      *naive
	device [][]int32 // by block: its ids
	window [][]int32 // the same of the window group
	live   []*sequence
	world  map[uint64]bool // the keys of a reader of Changes
	host   []int32
	did    map[string]int
	// waiters have asked before, and ask again.
	waiters []waiter

	operations int
}

type waiter struct {
	look Cursor
	root Root
	ids  []int32
}

type sequence struct {
	table    *Table
	naive    *naiveTable
	root     Root
	ids      []int32
	computed int
	bypass   bool
}

func newPlayer(t *testing.T, bytes []byte) *player {
	t.Helper()
	p := &player{t: t, bytes: bytes, world: map[uint64]bool{}, did: map[string]int{}}
	cfg := Config{Blocks: p.number(25), BlockSize: 1 + p.number(5), HostBlocks: p.number(6)}
	if p.number(3) > 0 {
		cfg.Window, cfg.WindowBlocks = 1+p.number(7), 2+p.number(9)
	}
	p.c, p.s = New(cfg), newNaive(cfg)
	p.c.keys.limit = 1 + p.number(8)
	if p.number(4) == 0 {
		p.c.tree.hash = func(uint64, []int32) uint64 { return 1 }
	}
	p.device = make([][]int32, cfg.Blocks)
	for b := range p.device {
		p.device[b] = make([]int32, cfg.BlockSize)
	}
	p.window = make([][]int32, cfg.WindowBlocks)
	for b := range p.window {
		p.window[b] = make([]int32, cfg.BlockSize)
	}
	return p
}

// number is the next byte below n, and 0 after the last one.
func (p *player) number(n int) int {
	if len(p.bytes) == 0 {
		return 0
	}
	b := int(p.bytes[0])
	p.bytes = p.bytes[1:]
	return b % n
}

func (p *player) play() {
	for len(p.bytes) > 0 {
		p.operation()
		p.operations++
		p.compare()
	}
	for len(p.live) > 0 {
		p.release(0)
		p.compare()
	}
	require.Equal(p.t, p.c.Total(), p.c.Free(), "nothing is held when everybody has gone")
	require.Equal(p.t, p.c.windows.total, p.c.FreeWindow())
}

func (p *player) operation() {
	op := p.number(16)
	if len(p.live) == 0 || (op < 3 && len(p.live) < 8) {
		p.start()
		return
	}
	i := p.number(len(p.live))
	q := p.live[i]
	switch op {
	case 3:
		p.release(i)
	case 4:
		p.fork(q)
	case 5:
		p.rollback(q)
	case 6:
		p.ask()
	case 7:
		p.listen()
	case 8:
		p.swap()
	case 9:
		p.claim(q)
	case 10:
		p.name(q)
	case 11:
		p.forget(q)
	default:
		p.compute(q)
	}
}

// prompt starts like a living sequence, so that prefixes meet, and continues with few different
// ids.
func (p *player) prompt() (Root, []int32) {
	root := Root{Salt: []string{"", "a", "/"}[max(0, p.number(6)-3)]}
	var ids []int32
	if len(p.live) > 0 && p.number(2) == 0 {
		of := p.live[p.number(len(p.live))]
		ids = slices.Clone(of.ids[:p.number(len(of.ids)+1)])
		if p.number(4) > 0 {
			root = of.root
		}
	}
	return root, p.more(ids, p.number(12))
}

func (p *player) more(ids []int32, n int) []int32 {
	for range n {
		id := int32(p.number(16))
		switch {
		case id < 12:
			id = 1
		case id == 15:
			id = 1 | Decoded
		}
		ids = append(ids, id)
	}
	return ids
}

func (p *player) start() {
	q := &sequence{bypass: p.number(8) == 0}
	q.root, q.ids = p.prompt()
	if q.bypass {
		q.table, q.naive = &Table{}, &naiveTable{}
		p.s.tables = append(p.s.tables, q.naive)
	} else {
		q.table, q.naive = p.match(q.root, q.ids)
		q.computed = q.table.Shared * p.c.BlockSize()
		p.did["hit"] += q.table.Shared
		if p.number(2) == 0 {
			p.claim(q)
		}
		if p.number(2) == 0 {
			p.name(q)
		}
	}
	p.live = append(p.live, q)
}

func (p *player) match(r Root, ids []int32) (*Table, *naiveTable) {
	if p.c.windows.size == 0 {
		return p.c.Match(r, ids), p.s.match(r, ids, len(ids))
	}
	depth, cached := p.deepest(r, ids), p.s.found(r, ids)
	t, found := p.c.MatchWindow(r, ids)
	require.Equal(p.t, cached*p.c.BlockSize(), found)
	require.Equal(p.t, depth, t.Shared, "the deepest hit whose window is there")
	p.did["window hit"] += depth
	p.did["window miss"] += cached - depth
	return t, p.s.match(r, ids, depth)
}

// deepest is how many lead blocks of ids are cached, with those of the window group that the next
// position sees.
func (p *player) deepest(r Root, ids []int32) int {
	size, windows := p.c.BlockSize(), map[string]bool{}
	for n := range p.c.tree.nodes {
		x := p.c.tree.nodes[n]
		if x.stamp == 0 || x.window == none {
			continue
		}
		var path []int32
		salt := ""
		for m := int32(n); m != none; m = p.c.tree.nodes[m].parent {
			path, salt = append(slices.Clone(p.c.tree.idsOf(m)), path...), p.c.tree.nodes[m].salt
		}
		windows[p.s.prefix(Root{salt}, path, len(path)/size)] = true
	}
	for n := p.s.found(r, ids); n > 0; n-- {
		there := true
		for at := max(0, n*size+1-p.c.windows.size); at < n*size; at++ {
			there = there && windows[p.s.prefix(r, ids, at/size+1)]
		}
		if there {
			return n
		}
	}
	return 0
}

func (p *player) claim(q *sequence) {
	if q.bypass || q.computed < q.table.Shared*p.c.BlockSize() {
		return
	}
	p.did["claim"]++
	p.c.Claim(q.table, q.root, q.ids)
	p.s.claim(q.naive, q.root, q.ids)
}

func (p *player) name(q *sequence) {
	var keys []Key
	for range p.number(3) {
		keys = append(keys, Key{Key: uint64(p.number(24)), Tokens: p.number(14)}) // the keys of a reader of Changes
	}
	slices.SortStableFunc(keys, func(a, b Key) int { return a.Tokens - b.Tokens })
	p.c.Name(q.table, keys)
	q.naive.keys = slices.DeleteFunc(keys, func(k Key) bool { return k.Tokens == 0 })
	p.s.attachKeys(q.naive)
}

// forget is rare, because scripts should hit and forgotten prefixes cannot be found.
func (p *player) forget(q *sequence) {
	if p.number(4) > 0 {
		p.compute(q)
		return
	}
	before := len(p.c.All())
	p.c.Forget(q.table)
	p.s.forget(q.naive)
	p.did["forget"] += min(q.table.Shared, 1)
	p.did["withdrawal"] += before - len(p.c.All())
}

// compute does a step of a few tokens like a loop: it grows the table, owns the first block,
// writes, and publishes full blocks.
func (p *player) compute(q *sequence) {
	n := 1 + p.number(6)
	if missing := q.computed + n - len(q.ids); missing > 0 {
		q.ids = p.more(q.ids, missing)
	}
	if p.number(2) == 0 && !p.grow(q, q.computed+n) {
		return
	}
	if !p.own(q, q.computed) || !p.grow(q, q.computed+n) || !p.growWindow(q, q.computed+n) {
		return
	}
	size := p.c.BlockSize()
	for at := q.computed; at < q.computed+n; at++ {
		b := q.table.Blocks[at/size]
		require.False(p.t, p.c.shared(b), "a step writes to block %d, which others see", b)
		p.device[b][at%size] = q.ids[at]
		if w := &p.c.windows; w.size > 0 {
			b := q.table.Window[at/size]
			require.True(p.t, w.refs[b] == 1 && w.nodeOf[b] == none, "a step writes to window block %d, which others see", b)
			p.window[b][at%size] = q.ids[at]
		}
	}
	q.computed += n
	defer p.slide(q)
	if q.bypass {
		return
	}
	require.NoError(p.t, p.c.Publish(q.table, q.root, q.ids, q.computed))
	p.s.publish(q.naive, q.root, q.ids, q.computed)
	if i := q.table.Shared - 1; i >= 0 && p.c.tree.nodes[p.c.nodeOf[q.table.Blocks[i]]].block != q.table.Blocks[i] {
		p.did["twin"]++
	}
}

func (p *player) growWindow(q *sequence, n int) bool {
	if p.c.windows.size == 0 {
		return true
	}
	fits := p.c.BlocksFor(n)-len(q.table.Window) <= p.c.FreeWindow()
	ok := p.c.GrowWindow(q.table, n)
	require.Equal(p.t, fits, ok)
	if !ok {
		p.did["window full"]++
	}
	return ok
}

// slide mostly frees the blocks that the next position does not see.
func (p *player) slide(q *sequence) {
	if p.c.windows.size == 0 || p.number(3) == 0 {
		return
	}
	before := q.table.WindowBlocks()
	slides := p.c.Slides(q.table, q.computed)
	p.c.Slide(q.table, q.computed, p.number(20), p.number(20))
	require.Equal(p.t, slides, q.table.WindowBlocks() < before)
	p.did["slide"] += before - q.table.WindowBlocks()
}

func (p *player) grow(q *sequence, n int) bool {
	ok := p.c.Grow(q.table, n)
	require.Equal(p.t, p.s.grow(q.naive, n), ok, "grow to %d", n)
	if !ok {
		p.did["full"]++
	}
	return ok
}

func (p *player) own(q *sequence, position int) bool {
	src, dst, copied, ok := p.c.Own(q.table, position)
	wantCopied, wantOK := p.s.own(q.naive, position)
	require.Equal(p.t, [2]bool{wantCopied, wantOK}, [2]bool{copied, ok}, "own %d", position)
	if copied {
		p.did["copy"]++
		require.NotEqual(p.t, src, dst)
		require.Equal(p.t, dst, q.table.Blocks[position/p.c.BlockSize()])
		copy(p.device[dst], p.device[src])
	}
	if ok && p.c.windows.size > 0 {
		if src, dst, copied, ok = p.c.OwnWindow(q.table, position); copied {
			p.did["window copy"]++
			copy(p.window[dst], p.window[src])
		}
	}
	return ok
}

func (p *player) fork(q *sequence) {
	if len(p.live) >= 8 {
		return
	}
	f := *q
	f.ids = slices.Clone(q.ids)
	f.table, f.naive = p.c.Fork(q.table), p.s.fork(q.naive)
	p.live = append(p.live, &f)
	p.did["fork"]++
}

// rollback forgets some computed tokens; others come in their place.
func (p *player) rollback(q *sequence) {
	least := 0
	for p.c.windows.size > 0 && p.c.firstWindow(least) < q.table.slid {
		least++ // a loop does not go back before its freed blocks
	}
	q.computed -= p.number(max(q.computed-least, 0) + 1)
	q.ids = q.ids[:q.computed]
	p.did["rollback"]++
}

func (p *player) release(i int) {
	q := p.live[i]
	require.NoError(p.t, p.c.Release(q.table))
	p.s.release(q.naive)
	require.ErrorIs(p.t, p.c.Release(q.table), ErrReleased)
	p.live = slices.Delete(p.live, i, i+1)
}

func (p *player) ask() {
	root, ids := p.prompt()
	want := p.s.computing(root, ids)
	require.Equal(p.t, want, computing(p.c, root, ids))
	if want {
		p.did["wait"]++
	}
	p.waiters = append(p.waiters, waiter{root: root, ids: ids})
	if len(p.waiters) > 20 {
		p.waiters = p.waiters[1:]
	}
	for i := range p.waiters {
		w := &p.waiters[i]
		require.Equal(p.t, p.s.computing(w.root, w.ids), p.c.Await(&w.look, w.root, w.ids) > 0, "who asked before is told the same")
	}
}

// listen follows the keys like a reader of Changes.
func (p *player) listen() {
	added, removed, reset := p.c.Changes()
	if reset {
		p.did["reset"]++
		require.Empty(p.t, added)
		require.Empty(p.t, removed)
		clear(p.world)
		added = p.c.All()
	}
	for _, key := range removed {
		require.True(p.t, p.world[key], "key %d goes that was not there", key)
		delete(p.world, key)
	}
	for _, key := range added {
		require.False(p.t, p.world[key], "key %d comes twice", key)
		p.world[key] = true
	}
	require.Equal(p.t, p.s.all(), slices.Sorted(maps.Keys(p.world)))
}

func (p *player) swap() {
	n := p.number(8)
	free := p.c.FreeHost()
	blocks, ok := p.c.AllocHost(n)
	require.Equal(p.t, n <= free, ok)
	for _, b := range blocks {
		require.NotContains(p.t, p.host, b)
		p.host = append(p.host, b)
	}
	give := p.number(len(p.host) + 1)
	require.NoError(p.t, p.c.ReleaseHost(p.host[:give]))
	if give > 0 {
		require.Error(p.t, p.c.ReleaseHost(append(slices.Clone(p.host[give:]), p.host[0])), "the last was given back before")
	}
	p.host = p.host[give:]
	require.Equal(p.t, len(p.c.host.used)-len(p.host), p.c.FreeHost())
}

// compare looks at everything after an operation.
func (p *player) compare() {
	tables := make([]*Table, len(p.live))
	for i, q := range p.live {
		tables[i] = q.table
	}
	check(p.t, p.c, tables)
	require.Empty(p.t, p.s.orphans(), "the naive one keeps no leaf without its parents")
	require.Equal(p.t, p.s.free(), p.c.Free())
	require.Equal(p.t, p.s.idle(), p.c.Cached())
	require.Equal(p.t, p.s.all(), p.c.All())
	stats := p.c.Stats()
	stats.WindowEvictions = 0
	require.Equal(p.t, p.s.stats, stats)
	size := p.c.BlockSize()
	for _, q := range p.live {
		require.Equal(p.t, q.naive.shared, q.table.Shared)
		require.Len(p.t, q.table.Blocks, len(q.naive.blocks))
		for at := range q.computed {
			require.Equal(p.t, q.ids[at], p.device[q.table.Blocks[at/size]][at%size], "position %d has another token's keys", at)
		}
		for at := max(0, q.computed+1-p.c.windows.size); at < q.computed && p.c.windows.size > 0; at++ {
			require.Equal(p.t, q.ids[at], p.window[q.table.Window[at/size]][at%size], "position %d has another token's keys in the window", at)
		}
	}
}
