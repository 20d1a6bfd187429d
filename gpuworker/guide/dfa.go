package guide

// dfa is a deterministic automaton over bytes, of which every state leads to an accepting one. It
// never changes.
type dfa struct {
	classOf [256]uint8
	classes int
	next    []int32 // by state and class; -1: no text
	accept  []bool  // by state; state 0 is the first
}

func (d *dfa) step(state int32, c byte) int32 {
	return d.next[int(state)*d.classes+int(d.classOf[c])]
}

// final reports whether state accepts the empty text alone.
func (d *dfa) final(state int32) bool {
	if !d.accept[state] {
		return false
	}
	for _, to := range d.next[int(state)*d.classes : (int(state)+1)*d.classes] {
		if to >= 0 {
			return false
		}
	}
	return true
}

// partition divides bytes into classes that nothing added to it distinguishes.
type partition struct {
	classOf [256]uint8
	classes int
	alone   byteSet // bytes that are a class of their own
}

func newPartition() *partition { return &partition{classes: 1} }

// refine separates bytes with different labels.
func (p *partition) refine(label func(c byte) int32) {
	type pair struct {
		class uint8
		label int32
	}
	ids := map[pair]uint8{}
	for c := range 256 {
		k := pair{p.classOf[c], label(byte(c))}
		id, ok := ids[k]
		if !ok {
			id = uint8(len(ids))
			ids[k] = id
		}
		p.classOf[c] = id
	}
	p.classes = len(ids)
}

// split separates the bytes of a set from others.
func (p *partition) split(s *byteSet) {
	var ids [256][2]uint16 // by class, outside and inside: the new class plus 1
	n := uint16(0)
	for c := range 256 {
		inside := 0
		if s.has(byte(c)) {
			inside = 1
		}
		id := &ids[p.classOf[c]][inside]
		if *id == 0 {
			n++
			*id = n
		}
		p.classOf[c] = uint8(*id - 1)
	}
	p.classes = int(n)
}

// single makes a byte a class of its own.
func (p *partition) single(c byte) {
	if !p.alone.has(c) {
		p.alone.add(c)
		var set byteSet
		set.add(c)
		p.split(&set)
	}
}

// add refines the partition by everything in a term but the rules that it calls.
func (p *partition) add(n *node, done map[*node]bool) {
	if n == nil || done[n] || p.classes == 256 {
		return
	}
	done[n] = true
	switch n.kind {
	case kindSet:
		p.split(&n.set)
	case kindLit:
		for i := range len(n.lit) {
			p.single(n.lit[i])
		}
	case kindDFA:
		p.refine(func(c byte) int32 { return int32(n.dfa.classOf[c]) })
	case kindKeys:
		n.object.add(p)
	case kindDistinct:
		for _, c := range []byte(", \n\t") {
			p.single(c)
		}
	case kindNone, kindEmpty, kindCat, kindAlt, kindRep, kindCall, kindAnd, kindNot:
	}
	p.add(n.a, done)
	p.add(n.b, done)
	for _, k := range n.kids {
		p.add(k, done)
	}
}

// representatives has one byte of each class.
func (p *partition) representatives() []byte {
	reps := make([]byte, p.classes)
	for c := 255; c >= 0; c-- {
		reps[p.classOf[c]] = byte(c)
	}
	return reps
}

// determinise returns an automaton for a term that calls no rule, as a term. It is how intersections
// and complements are built: none of their derivatives is left that no text ends.
func (b *builder) determinise(n *node) *node {
	if b.err != nil {
		return b.none
	}
	p := newPartition()
	p.add(n, map[*node]bool{})
	reps := p.representatives()
	return explore(b, p, n,
		func(at *node, class int) (*node, bool) {
			d := b.derive(at, reps[class])
			b.spend(int(b.costOf(at)))
			return d, d.kind != kindNone
		},
		func(at *node) bool { return at.nullable })
}

// explore builds the automaton of a transition function from all the states that it reaches, drops
// those from which no accepting one is reached, and returns it as a term.
func explore[S comparable](b *builder, p *partition, start S, step func(at S, class int) (S, bool), accepts func(S) bool) *node {
	return b.automaton(exploreAll(b, p, start, step, accepts))
}

// exploreAll is explore for a caller that needs the automaton. accepts is called once for each state, in
// their order. first is -1 if no text is accepted.
func exploreAll[S comparable](
	b *builder, p *partition, start S, step func(at S, class int) (S, bool), accepts func(S) bool,
) (d *dfa, first int32) {
	ids, states := map[S]int32{start: 0}, []S{start}
	d = &dfa{classOf: p.classOf, classes: p.classes}
	for i := 0; i < len(states) && b.err == nil; i++ {
		d.accept = append(d.accept, accepts(states[i]))
		for class := range p.classes {
			to, ok := step(states[i], class)
			id := int32(-1)
			if ok {
				if id, ok = ids[to]; !ok {
					id = int32(len(states))
					ids[to] = id
					states = append(states, to)
				}
			}
			d.next = append(d.next, id)
		}
		b.spend(p.classes)
		if b.tables += 4*p.classes + 1; b.tables > maxTables {
			b.fail(ErrLimit, "its automata have more than %d bytes", maxTables)
		}
		if len(states) > maxStates {
			b.fail(ErrLimit, "its automaton has more than %d states", maxStates)
		}
	}
	if b.err != nil {
		return d, -1
	}
	return d.trimmed()
}

// trimmed returns the automaton without states that lead to no accepting one, and its first state, -1
// if that is one of them.
func (d *dfa) trimmed() (*dfa, int32) {
	into := make([][]int32, len(d.accept)) // by state: the states that lead to it
	var live []int32
	isLive := make([]bool, len(d.accept))
	for s := range d.accept {
		if d.accept[s] {
			isLive[s] = true
			live = append(live, int32(s))
		}
		for _, to := range d.next[s*d.classes : (s+1)*d.classes] {
			if to >= 0 {
				into[to] = append(into[to], int32(s))
			}
		}
	}
	for len(live) > 0 {
		s := live[len(live)-1]
		live = live[:len(live)-1]
		for _, from := range into[s] {
			if !isLive[from] {
				isLive[from] = true
				live = append(live, from)
			}
		}
	}
	if !isLive[0] {
		return d, -1
	}
	for i, to := range d.next {
		if to >= 0 && !isLive[to] {
			d.next[i] = -1
		}
	}
	return d, 0
}
