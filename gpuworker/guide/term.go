package guide

import (
	"encoding/binary"
	"slices"
)

// kind is the kind of a term.
type kind uint8

const (
	kindNone     kind = iota // no text
	kindEmpty                // the empty text
	kindSet                  // one byte of a set
	kindLit                  // a literal of at least two bytes
	kindCat                  // a, then b
	kindAlt                  // one of kids
	kindRep                  // a, low to high times
	kindCall                 // a rule
	kindDFA                  // the texts that an automaton accepts from a state
	kindKeys                 // the rest of a key of an object, its value, and the properties that follow
	kindDistinct             // an item of an array of distinct items, and those that follow
	kindAnd                  // all of kids; only while an automaton is built
	kindNot                  // every text but a's; only while an automaton is built
)

// unbounded is the upper count of a repetition without one.
const unbounded = -1

// node is a term: a set of byte strings. Nodes are hash-consed, so that equal terms of one arena are
// one pointer. Apart from next, cost, plain and sole, which are caches, a node never changes.
type node struct {
	kind     kind
	nullable bool // whether the empty text is in it
	id       uint32
	depth    int32 // terms that follow each other
	low      int32 // of kindRep; the rule of kindCall; the state of kindDFA; the items before a kindDistinct
	high     int32 // of kindRep
	cost     uint32
	a, b     *node
	kids     []*node // ascending by id
	set      byteSet
	lit      string // of kindLit; of kindDistinct and kindKeys: the bitset of what came before
	dfa      *dfa
	object   *object // of kindKeys; low and high are its place
	distinct *distinct
	at       int32   // of kindKeys: in the trie
	state    int32   // of kindKeys: of the automaton of others
	next     []*node // by byte class: what may follow such a byte; nil entries are unknown
	plain    *node   // see plainNext; nil: unknown
	plainFor uint32  // terms that finding plain visits
	sole     *sole   // see only; nil: unknown
}

// byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *byteSet) has(c byte) bool { return s[c>>6]&(1<<(c&63)) != 0 }

func (s *byteSet) addRange(low, high byte) {
	for c := int(low); c <= int(high); c++ {
		s.add(byte(c))
	}
}

// nodeKey identifies a term among those of an arena.
type nodeKey struct {
	kind      kind
	a, b      uint32
	low, high int32
	dfa       *dfa
	object    *object
	distinct  *distinct
	text      string // a literal, the bytes of a set, the ids of kids, or a bitset
}

// arena owns terms. The zero value is not usable.
type arena struct {
	known       map[nodeKey]*node
	none, empty *node
	rules       []*node // bodies by rule; nil while the grammar is built
	nullable    []bool  // by rule
	maxDepth    int32   // terms that are deeper are none; 0: no limit
	bytes       int     // estimate of its memory
	classOf     [256]uint8
	classes     int         // of bytes that no term of the grammar distinguishes; 0 while it is built
	reps        []byte      // one byte of each class
	plain       []plainKind // see plainNext
}

// nodeBytes is about the memory of a node and of its entry in the table.
const nodeBytes = 256

func newArena() *arena {
	r := &arena{known: map[nodeKey]*node{}}
	r.none = r.intern(nodeKey{kind: kindNone}, &node{})
	r.empty = r.intern(nodeKey{kind: kindEmpty}, &node{nullable: true})
	return r
}

func (r *arena) intern(k nodeKey, n *node) *node {
	n.kind, n.id = k.kind, uint32(len(r.known))
	r.known[k] = n
	r.bytes += nodeBytes + len(k.text) + 8*len(n.kids)
	return n
}

func (r *arena) byteSet(s byteSet) *node {
	if s == (byteSet{}) {
		return r.none
	}
	text := make([]byte, 0, 32)
	for _, w := range s {
		text = binary.LittleEndian.AppendUint64(text, w)
	}
	k := nodeKey{kind: kindSet, text: string(text)}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{set: s, depth: 1})
}

func (r *arena) one(c byte) *node {
	var s byteSet
	s.add(c)
	return r.byteSet(s)
}

func (r *arena) bytesOf(low, high byte) *node {
	var s byteSet
	s.addRange(low, high)
	return r.byteSet(s)
}

// anyOf is one byte of a string.
func (r *arena) anyOf(text string) *node {
	var s byteSet
	for i := range len(text) {
		s.add(text[i])
	}
	return r.byteSet(s)
}

func (r *arena) lit(s string) *node {
	switch len(s) {
	case 0:
		return r.empty
	case 1:
		return r.one(s[0])
	}
	k := nodeKey{kind: kindLit, text: s}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{lit: s, depth: 1})
}

// cat is a followed by b. It leans to the right, so that a derivative changes the head alone.
func (r *arena) cat(a, b *node) *node {
	switch {
	case a.kind == kindNone || b.kind == kindNone:
		return r.none
	case a.kind == kindEmpty:
		return b
	case b.kind == kindEmpty:
		return a
	case a.kind == kindCat:
		return r.cat(a.a, r.cat(a.b, b))
	}
	depth := b.depth + 1
	if r.maxDepth > 0 && depth > r.maxDepth {
		return r.none
	}
	k := nodeKey{kind: kindCat, a: a.id, b: b.id}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{a: a, b: b, depth: depth, nullable: a.nullable && b.nullable})
}

func (r *arena) seq(parts ...*node) *node {
	n := r.empty
	for _, p := range slices.Backward(parts) {
		n = r.cat(p, n)
	}
	return n
}

// follow is cat for a derivative: it distributes over the alternatives of a, so that a state is a set
// of a head and a stack each.
func (r *arena) follow(a, b *node) *node {
	if a.kind != kindAlt {
		return r.cat(a, b)
	}
	kids := make([]*node, len(a.kids))
	for i, k := range a.kids {
		kids[i] = r.cat(k, b)
	}
	return r.alt(kids...)
}

// alt is one of the given terms.
func (r *arena) alt(terms ...*node) *node {
	return r.combine(kindAlt, terms)
}

// and is the intersection of the given terms.
func (r *arena) and(terms ...*node) *node {
	return r.combine(kindAnd, terms)
}

// combine makes a union or an intersection: flat, without repetitions, in the order of ids.
func (r *arena) combine(k kind, terms []*node) *node {
	var flat []*node
	var set byteSet
	for _, t := range terms {
		switch {
		case k == kindAlt && t.kind == kindNone:
		case k == kindAnd && t.kind == kindNone:
			return r.none
		case t.kind == k:
			flat = append(flat, t.kids...)
		default:
			flat = append(flat, t)
		}
	}
	if k == kindAlt { // two sets are one set
		sets := 0
		for _, t := range flat {
			if t.kind == kindSet {
				sets++
				for i := range set {
					set[i] |= t.set[i]
				}
			}
		}
		if sets > 1 {
			flat = slices.DeleteFunc(flat, func(t *node) bool { return t.kind == kindSet })
			flat = append(flat, r.byteSet(set))
		}
	}
	slices.SortFunc(flat, func(a, b *node) int { return int(a.id) - int(b.id) })
	flat = slices.Compact(flat)
	if k == kindAlt && len(flat) > 1 && slices.Contains(flat, r.empty) &&
		slices.ContainsFunc(flat, func(t *node) bool { return t.nullable && t != r.empty }) {
		flat = slices.DeleteFunc(flat, func(t *node) bool { return t == r.empty })
	}
	switch len(flat) {
	case 0:
		return r.none // an intersection of nothing is never asked for
	case 1:
		return flat[0]
	}
	ids := make([]byte, 0, 4*len(flat))
	n := &node{kids: flat, nullable: k == kindAnd}
	for _, t := range flat {
		ids = binary.LittleEndian.AppendUint32(ids, t.id)
		n.depth = max(n.depth, t.depth)
		if k == kindAlt {
			n.nullable = n.nullable || t.nullable
		} else {
			n.nullable = n.nullable && t.nullable
		}
	}
	key := nodeKey{kind: k, text: string(ids)}
	if old := r.known[key]; old != nil {
		return old
	}
	return r.intern(key, n)
}

// not is every text that is not in a.
func (r *arena) not(a *node) *node {
	if a.kind == kindNot {
		return a.a
	}
	k := nodeKey{kind: kindNot, a: a.id}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{a: a, depth: a.depth, nullable: !a.nullable})
}

// rep is low to high of a; high may be unbounded.
func (r *arena) rep(a *node, low, high int) *node {
	switch {
	case high == 0 || a.kind == kindEmpty || a.kind == kindNone && low == 0:
		return r.empty
	case a.kind == kindNone:
		return r.none
	case low == 1 && high == 1:
		return a
	}
	if a.nullable {
		low = 0
	}
	if a.kind == kindRep && a.low == 0 && a.high == unbounded {
		return a
	}
	k := nodeKey{kind: kindRep, a: a.id, low: int32(low), high: int32(high)}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{a: a, low: int32(low), high: int32(high), depth: a.depth, nullable: low == 0})
}

func (r *arena) optional(a *node) *node { return r.rep(a, 0, 1) }

// call is a text of a rule.
func (r *arena) call(rule int) *node {
	k := nodeKey{kind: kindCall, low: int32(rule)}
	if n := r.known[k]; n != nil {
		return n
	}
	n := &node{low: int32(rule), depth: 1}
	if rule < len(r.nullable) {
		n.nullable = r.nullable[rule]
	}
	return r.intern(k, n)
}

// automaton is the language that d accepts from a state.
func (r *arena) automaton(d *dfa, state int32) *node {
	if state < 0 {
		return r.none
	}
	if d.final(state) {
		return r.empty
	}
	k := nodeKey{kind: kindDFA, low: state, dfa: d}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{low: state, dfa: d, depth: 1, nullable: d.accept[state]})
}

// adopt returns the term of this arena that is equal to n, which may be of another one. done remembers
// what was adopted. without, if not nil, states which rules become none.
func (r *arena) adopt(n *node, done map[*node]*node, without func(rule int32) bool) *node {
	if have := done[n]; have != nil {
		return have
	}
	again := func(n *node) *node { return r.adopt(n, done, without) }
	var out *node
	switch n.kind {
	case kindNone:
		out = r.none
	case kindEmpty:
		out = r.empty
	case kindSet:
		out = r.byteSet(n.set)
	case kindLit:
		out = r.lit(n.lit)
	case kindCat:
		out = r.cat(again(n.a), again(n.b))
	case kindRep:
		out = r.rep(again(n.a), int(n.low), int(n.high))
	case kindCall:
		if out = r.none; without == nil || !without(n.low) {
			out = r.call(int(n.low))
		}
	case kindDFA:
		out = r.automaton(n.dfa, n.low)
	case kindKeys:
		out = r.keys(n.object, place{n.low, n.high, bitset(n.lit)}, n.at, n.state)
	case kindDistinct:
		out = r.distinct(n.distinct, int(n.low), bitset(n.lit))
	case kindNot:
		out = r.not(again(n.a))
	case kindAlt, kindAnd:
		kids := make([]*node, len(n.kids))
		for i, k := range n.kids {
			kids[i] = again(k)
		}
		out = r.combine(n.kind, kids)
	}
	done[n] = out
	return out
}
