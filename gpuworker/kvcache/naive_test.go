package kvcache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// naive is a Cache implemented with maps and full scans. It has no block numbers, no lists and no
// hashes: a prefix is the text of its ids.
type naive struct {
	total, blockSize int
	tables           []*naiveTable
	cached           map[string]*naivePrefix
	clock            int
	forgets          int
	stats            Stats
}

type naivePrefix struct {
	blocks    []*naiveBlock // that hold it; others get the first
	idleSince int           // by the clock; 0 = held
	keys      map[uint64]bool
}

type naiveBlock struct {
	prefix string // "" = not published
}

type naiveTable struct {
	blocks []*naiveBlock
	shared int
	claims []string
	keys   []Key
}

func newNaive(cfg Config) *naive {
	return &naive{total: cfg.Blocks, blockSize: cfg.BlockSize, cached: map[string]*naivePrefix{}}
}

func (s *naive) prefix(r Root, ids []int32, blocks int) string {
	return fmt.Sprint(r.Salt, "/", ids[:blocks*s.blockSize], "/")
}

// of is the prefix of ids for a table that continues after its shared blocks. It is a forgotten
// prefix if those are forgotten.
func (s *naive) of(t *naiveTable, r Root, ids []int32, blocks int) string {
	text := s.prefix(r, ids, blocks)
	if t.shared > 0 && strings.HasPrefix(t.blocks[0].prefix, forgotten) {
		realm, _, _ := strings.Cut(t.blocks[0].prefix, ":")
		return realm + ":" + text
	}
	return text
}

// forgotten starts the keys of unfindable prefixes. A number and a colon follow, so that each call
// of forget has its own.
const forgotten = "forgotten "

// forget renames the prefixes that start like t's, so that they cannot be found from a root, and
// removes their keys.
func (s *naive) forget(t *naiveTable) {
	if t.shared == 0 || strings.HasPrefix(t.blocks[0].prefix, forgotten) {
		return
	}
	first := t.blocks[0].prefix
	s.forgets++
	renamed := func(text string) string {
		if text == first || strings.HasPrefix(text, strings.TrimSuffix(first, "]/")+" ") {
			return fmt.Sprint(forgotten, s.forgets, ":", text)
		}
		return text
	}
	for text, p := range s.cached {
		other := renamed(text)
		if other == text {
			continue
		}
		delete(s.cached, text)
		s.cached[other] = p
		clear(p.keys)
		for _, b := range p.blocks {
			b.prefix = other
		}
	}
	for _, t := range s.tables {
		for i := range t.claims {
			t.claims[i] = renamed(t.claims[i])
		}
	}
}

func (s *naive) holders(b *naiveBlock) int {
	n := 0
	for _, t := range s.tables {
		if slices.Contains(t.blocks, b) {
			n++
		}
	}
	return n
}

func (s *naive) heldBlocks() map[*naiveBlock]bool {
	held := map[*naiveBlock]bool{}
	for _, t := range s.tables {
		for _, b := range t.blocks {
			held[b] = true
		}
	}
	return held
}

// free is how many blocks no table holds.
func (s *naive) free() int { return s.total - len(s.heldBlocks()) }

func (s *naive) idle() int {
	n := 0
	for _, p := range s.cached {
		if p.idleSince > 0 {
			n++
		}
	}
	return n
}

// expire drops the blocks that no table holds and that are not cached, and stamps the prefixes that
// became idle.
func (s *naive) expire() {
	held := s.heldBlocks()
	for _, p := range s.cached {
		first := p.blocks[0]
		p.blocks = slices.DeleteFunc(p.blocks, func(b *naiveBlock) bool { return !held[b] })
		switch last := len(p.blocks) - 1; {
		case last >= 0 && p.blocks[0] != first: // the newest one replaces it
			p.blocks = slices.Insert(p.blocks[:last], 0, p.blocks[last])
			p.idleSince = 0
		case last >= 0:
			p.idleSince = 0
		default:
			p.blocks = []*naiveBlock{first}
			if p.idleSince == 0 {
				s.clock++
				p.idleSince = s.clock
			}
		}
	}
}

// makeRoom evicts until an empty block is there.
func (s *naive) makeRoom() {
	if s.free()-s.idle() > 0 {
		return
	}
	oldest := ""
	for text, p := range s.cached {
		if p.idleSince > 0 && (oldest == "" || p.idleSince < s.cached[oldest].idleSince) {
			oldest = text
		}
	}
	delete(s.cached, oldest)
	s.stats.Evictions++
}

// orphans are the prefixes whose parent is not cached.
func (s *naive) orphans() []string {
	var all []string
	for text := range s.cached {
		salt, ids, _ := strings.Cut(text, "/[")
		words := strings.Fields(strings.Trim(ids, "]/"))
		if len(words) <= s.blockSize {
			continue
		}
		above := salt + "/[" + strings.Join(words[:len(words)-s.blockSize], " ") + "]/"
		if s.cached[above] == nil {
			all = append(all, text)
		}
	}
	return all
}

// found is how many lead blocks of ids are cached, without the last token.
func (s *naive) found(r Root, ids []int32) (n int) {
	for n < (len(ids)-1)/s.blockSize && s.cached[s.prefix(r, ids, n+1)] != nil {
		n++
	}
	return n
}

// match takes at most that many blocks.
func (s *naive) match(r Root, ids []int32, most int) *naiveTable {
	t := &naiveTable{}
	for n := 1; n <= min(most, s.found(r, ids)); n++ {
		text := s.prefix(r, ids, n)
		t.blocks = append(t.blocks, s.cached[text].blocks[0])
	}
	t.shared = len(t.blocks)
	s.tables = append(s.tables, t)
	s.stats.Lookups++
	s.stats.TokensLooked += uint64(len(ids))
	if t.shared > 0 {
		s.stats.Hits++
		s.stats.TokensHit += uint64(t.shared * s.blockSize)
	}
	s.expire()
	return t
}

func (s *naive) grow(t *naiveTable, n int) bool {
	need := (n+s.blockSize-1)/s.blockSize - len(t.blocks)
	if need <= 0 {
		return true
	}
	if need > s.free() {
		return false
	}
	for range need {
		s.makeRoom()
		t.blocks = append(t.blocks, &naiveBlock{})
	}
	return true
}

func (s *naive) publish(t *naiveTable, r Root, ids []int32, computed int) {
	for t.shared < computed/s.blockSize {
		text := s.of(t, r, ids, t.shared+1)
		b := t.blocks[t.shared]
		b.prefix = text
		switch p := s.cached[text]; {
		case p == nil:
			s.cached[text] = &naivePrefix{blocks: []*naiveBlock{b}, keys: map[uint64]bool{}}
		case p.idleSince > 0:
			p.blocks = []*naiveBlock{b}
		case !slices.Contains(p.blocks, b):
			p.blocks = append(p.blocks, b)
		}
		if len(t.claims) > 0 && t.claims[0] == text {
			t.claims = t.claims[1:]
		} else {
			t.claims = nil
		}
		t.shared++
		s.expire()
		s.attachKeys(t)
	}
}

// attachKeys attaches the keys whose blocks are published.
func (s *naive) attachKeys(t *naiveTable) {
	t.keys = slices.DeleteFunc(t.keys, func(k Key) bool {
		i := (k.Tokens - 1) / s.blockSize
		if i >= t.shared {
			return false
		}
		text := t.blocks[i].prefix
		if keys := s.cached[text].keys; len(keys) < 16+s.blockSize && !strings.HasPrefix(text, forgotten) {
			keys[k.Key] = true
		}
		return true
	})
}

func (s *naive) claim(t *naiveTable, r Root, ids []int32) {
	t.claims = nil
	for n := t.shared + 1; n <= len(ids)/s.blockSize; n++ {
		t.claims = append(t.claims, s.of(t, r, ids, n))
	}
}

func (s *naive) computing(r Root, ids []int32) bool {
	for n := 1; n <= (len(ids)-1)/s.blockSize; n++ {
		text := s.prefix(r, ids, n)
		if s.cached[text] != nil {
			continue
		}
		return slices.ContainsFunc(s.tables, func(t *naiveTable) bool { return slices.Contains(t.claims, text) })
	}
	return false
}

func (s *naive) fork(t *naiveTable) *naiveTable {
	f := &naiveTable{blocks: slices.Clone(t.blocks), shared: t.shared}
	s.tables = append(s.tables, f)
	return f
}

func (s *naive) seen(b *naiveBlock) bool { return b.prefix != "" || s.holders(b) > 1 }

func (s *naive) own(t *naiveTable, position int) (copied, ok bool) {
	i := position / s.blockSize
	if i >= len(t.blocks) || !s.seen(t.blocks[i]) {
		return false, true
	}
	if s.free() == 0 {
		return false, false
	}
	s.makeRoom()
	if i < t.shared {
		t.shared, t.claims = i, nil
	}
	if i+1 < len(t.blocks) && s.seen(t.blocks[i+1]) {
		for len(t.blocks) > i+1 {
			s.shorten(t)
		}
	}
	t.blocks[i] = &naiveBlock{}
	s.expire()
	return true, true
}

func (s *naive) shorten(t *naiveTable) {
	t.blocks = t.blocks[:len(t.blocks)-1]
	s.expire()
}

func (s *naive) release(t *naiveTable) {
	t.claims = nil
	for len(t.blocks) > 0 {
		s.shorten(t)
	}
	s.tables = slices.DeleteFunc(s.tables, func(x *naiveTable) bool { return x == t })
}

func (s *naive) all() []uint64 {
	keys := map[uint64]bool{}
	for _, p := range s.cached {
		maps.Copy(keys, p.keys)
	}
	return slices.Sorted(maps.Keys(keys))
}
