package guide

import (
	"slices"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Grammar is a compiled constraint for one vocabulary. It is safe for concurrent use.
//
// Its terms grow while masks are computed. When they use more than maxGrammarBytes, the grammar drops
// all but its rules and makes terms again as they are reached; a State of before is carried over. The
// masks do not depend on that, because they follow from the set of texts that a term stands for.
type Grammar struct {
	vocabulary *Vocabulary
	limit      *Limit // nil: none
	dropped    []string
	tables     int     // bytes of the automata, of the names of properties and of dropped
	bodies     []*node // of the rules; rule 0 is the whole
	bytes      atomic.Int64

	mu struct {
		sync.Mutex
		arena  *arena
		number uint64    // of the arena, part of the keys of cached masks
		rules  int       // bytes of an arena that has the rules alone
		visits []*visits // not in use
	}
	proto arena // classes and rules of a new arena
}

// maxGrammarBytes bounds the terms that a grammar remembers in addition to its rules, by estimate.
const maxGrammarBytes = 4 << 20

// Dropped has the paths of the source that lenient compilation ignored; none for nil. It lists the first maxDropped,
// and how many more there are.
func (g *Grammar) Dropped() []string {
	if g == nil {
		return nil
	}
	return g.dropped
}

// finish makes the grammar of the builder's rules. Rule 0 is the whole.
func (b *builder) finish(v *Vocabulary) (*Grammar, error) {
	b.path = ""
	if b.err != nil {
		return nil, b.err
	}
	nullable := b.fixpoint(b.derivesEmpty)
	productive := b.fixpoint(b.derivesSome)
	if !productive[0] {
		b.fail(ErrUnsupported, "no text obeys it")
		return nil, b.err
	}
	for _, o := range b.objects {
		if !o.prune(productive) {
			return nil, b.failed(ErrUnsupported, "no value obeys what some of patternProperties say")
		}
	}
	g := &Grammar{vocabulary: v, tables: b.tables + b.names*nameNodeBytes, bodies: make([]*node, len(b.bodies))}
	final := newArena()
	final.nullable = nullable
	done := map[*node]*node{}
	p := newPartition()
	seen := map[*node]bool{}
	for i, body := range b.bodies {
		g.bodies[i] = final.adopt(body, done, func(rule int32) bool { return !productive[rule] })
		p.add(g.bodies[i], seen)
		if g.bodies[i].depth > maxStack/4 {
			b.fail(ErrLimit, "it has more than %d terms in a row", maxStack/4)
		}
	}
	if b.checkLeftRecursion(g.bodies); b.err != nil {
		return nil, b.err
	}
	g.proto = arena{nullable: nullable, classOf: p.classOf, classes: p.classes, reps: p.representatives(), maxDepth: maxStack}
	g.proto.plain = plainKinds(&p.classOf)
	g.renew()
	return g, nil
}

// renew gives the grammar an empty arena. The caller holds the lock, or no other goroutine has the grammar.
func (g *Grammar) renew() {
	r := newArena()
	r.nullable, r.classOf, r.classes, r.maxDepth = g.proto.nullable, g.proto.classOf, g.proto.classes, g.proto.maxDepth
	r.reps, r.plain = g.proto.reps, g.proto.plain
	done := map[*node]*node{}
	r.rules = make([]*node, len(g.bodies))
	for i, body := range g.bodies {
		r.rules[i] = r.adopt(body, done, nil)
	}
	g.mu.arena, g.mu.number, g.mu.rules = r, g.vocabulary.nextArena.Add(1), r.bytes
	g.measure()
}

// fixpoint computes a property of rules that holds if it holds for a text of the body.
func (b *builder) fixpoint(holds func(n *node, known []bool, done map[*node]bool) bool) []bool {
	known := make([]bool, len(b.bodies))
	for changed := true; changed && b.err == nil; {
		changed = false
		done := map[*node]bool{}
		for i, body := range slices.Backward(b.bodies) { // a rule is mostly numbered before those that it calls
			if !known[i] && holds(body, known, done) {
				known[i], changed = true, true
			}
		}
		b.spend(len(b.bodies) + len(done))
	}
	return known
}

// derivesEmpty reports whether the empty text is in n.
func (b *builder) derivesEmpty(n *node, known []bool, done map[*node]bool) bool {
	return b.holds(n, known, done, func(n *node) bool { return n.nullable })
}

// derivesSome reports whether any text is in n.
func (b *builder) derivesSome(n *node, known []bool, done map[*node]bool) bool {
	return b.holds(n, known, done, func(n *node) bool { return n.kind != kindNone })
}

func (b *builder) holds(n *node, known []bool, done map[*node]bool, leaf func(*node) bool) (out bool) {
	if have, ok := done[n]; ok {
		return have
	}
	defer func() { done[n] = out }()
	again := func(n *node) bool { return b.holds(n, known, done, leaf) }
	switch n.kind {
	case kindCat:
		return again(n.a) && again(n.b)
	case kindRep:
		return n.low == 0 || again(n.a)
	case kindCall:
		return known[n.low]
	case kindKeys:
		return leaf(n) && n.object.some(known)
	case kindAlt:
		for _, k := range n.kids {
			if again(k) {
				return true
			}
		}
		return false
	default:
		return leaf(n)
	}
}

// checkLeftRecursion refuses rules that may call themselves before they consume a byte: their
// derivative would have no end.
func (b *builder) checkLeftRecursion(bodies []*node) {
	const visiting, visited = 1, 2
	state := make([]int, len(bodies))
	var rule func(i int32)
	var heads func(n *node)
	rule = func(i int32) {
		if state[i] == visiting {
			b.fail(ErrUnsupported, "a rule begins with itself: write left recursion as a repetition")
		}
		if state[i] != 0 {
			return
		}
		state[i] = visiting
		heads(bodies[i])
		state[i] = visited
	}
	heads = func(n *node) {
		switch n.kind {
		case kindCat:
			if heads(n.a); n.a.nullable {
				heads(n.b)
			}
		case kindRep:
			heads(n.a)
		case kindCall:
			rule(n.low)
		case kindAlt:
			for _, k := range n.kids {
				heads(k)
			}
		default:
		}
	}
	for i := range bodies {
		rule(int32(i))
	}
}

// State is how far a text has got under a grammar. It is a value: continuations of one prompt begin
// with equal ones. The zero value is no grammar.
type State struct {
	grammar *Grammar
	arena   *arena
	node    *node
	ends    []int32
	usual   bool // see UsualSpelling
	limit   limitState
}

// Bytes estimates the memory of the grammar and of the terms that it remembers now. It never waits.
func (g *Grammar) Bytes() int { return int(g.bytes.Load()) }

// measure updates Bytes. The caller holds the lock, or no other goroutine has the grammar.
func (g *Grammar) measure() { g.bytes.Store(int64(g.mu.rules + g.tables + g.mu.arena.bytes)) }

// CanEnd reports whether one of the ids may end a text: whether it is no text itself.
func (g *Grammar) CanEnd(ends []int32) bool { return slices.ContainsFunc(ends, g.vocabulary.canEnd) }

// Start returns the state of an empty text. Where the text may end, the masks allow the ids in ends
// that are not text of the vocabulary.
func (g *Grammar) Start(ends []int32) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{grammar: g, arena: g.mu.arena, node: g.mu.arena.rules[0]}
	for _, id := range ends {
		if g.vocabulary.canEnd(id) {
			s.ends = append(s.ends, id)
		}
	}
	return s.limited()
}

// Free reports whether no grammar constrains the text.
func (s State) Free() bool { return s.grammar == nil }

// Complete reports whether the text may end here.
func (s State) Complete() bool { return s.node.nullable }

// Advance returns the state after a token, or ErrNotAllowed.
func (s State) Advance(id int32) (State, error) {
	return s.advance(s.grammar.vocabulary.bytesOf(id))
}

// AdvanceText is Advance for bytes, which are not empty.
func (s State) AdvanceText(text string) (State, error) { return s.advance([]byte(text)) }

func (s State) advance(text []byte) (State, error) {
	if len(text) == 0 {
		return s, ErrNotAllowed
	}
	g := s.grammar
	g.mu.Lock()
	defer g.mu.Unlock()
	s.enter()
	return s.follow(text)
}

// follow is the state after a text. The caller holds the lock and has entered. ErrWork is never
// returned for a token of a mask: the walk that allowed the token took the same derivatives.
func (s State) follow(text []byte) (State, error) {
	at := s.node
	for _, c := range text {
		if s.arena.costOf(at) > maxMaskWork {
			return s, ErrWork
		}
		if at = s.arena.step(at, c); at.kind == kindNone {
			return s, ErrNotAllowed
		}
	}
	s.node = at
	return s.counted(text), nil
}

// full reports whether the arena is to be replaced before the next walk.
func (g *Grammar) full() bool { return g.mu.arena.bytes > g.mu.rules+maxGrammarBytes }

// enter carries the state over to the grammar's present arena, and gives the grammar a new one if it
// is full. The caller holds the lock.
func (s *State) enter() {
	g := s.grammar
	if g.full() {
		g.renew()
	}
	if s.arena != g.mu.arena {
		s.arena = g.mu.arena
		s.node = s.arena.adopt(s.node, map[*node]*node{}, nil)
	}
}

// validText is the problem of a source as text.
func (b *builder) validText(source string) {
	switch {
	case len(source) > maxSource:
		b.fail(ErrLimit, "it has %d bytes, at most %d are read", len(source), maxSource)
	case !utf8.ValidString(source):
		b.fail(ErrSyntax, "it is not UTF-8")
	}
}
