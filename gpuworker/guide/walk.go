package guide

import (
	"math/bits"
	"slices"
)

// maxMaskWork bounds the terms that the derivatives of one mask visit: for each distinct pair of a
// state of the walk and a class of bytes that is tried there, the terms of the state, whether or not
// the derivative is remembered. It also bounds the memory of the states that one mask makes, to about
// nodeBytes for each. Nearly all masks of the schemas of MaskBench stay far
// below it.
const maxMaskWork = 1 << 17

// Steps are the unit of a walk's pieces: a step is a node of the trie that is visited, about 4 ns. A
// term that a derivative visits counts as termSteps.
const termSteps = 16

// Walk computes the mask of a state in pieces, so that neither the caller nor the lock of the grammar is
// busy for long. The mask, and whether it needs more work than one may, do not depend on the pieces.
// One goroutine at a time may use it.
type Walk struct {
	state State
	ids   []int32 // tokens after state, not followed yet
	mask  []uint32
	key   maskKey
	begun bool
	done  bool
	err   error

	trie   *trie
	then   *trie // the trie after it; nil: none
	at     int32 // the next node of trie
	found  int
	work   int // terms so far, at most maxMaskWork
	steps  int // all so far
	path   [maxTokenBytes + 1]*node
	marks  [maxTokenBytes + 1]int32 // of path, in visits
	visits *visits
}

// Walk returns a walk from a state over ids, which are allowed tokens, to the mask that follows them. mask
// has Words words and belongs to the walk until it is done.
func (s State) Walk(ids []int32, mask []uint32) *Walk { return &Walk{state: s, ids: ids, mask: mask} }

// Run continues for about as many steps, and reports whether the walk is done.
func (w *Walk) Run(steps int) bool {
	if w.done {
		return true
	}
	mu := &w.state.grammar.mu
	mu.Lock()
	defer mu.Unlock()
	return w.run(steps)
}

// TryRun is Run unless another walk holds the grammar, or the grammar must drop its terms first, which
// takes longer than a piece. It then does nothing.
func (w *Walk) TryRun(steps int) bool {
	if w.done {
		return true
	}
	g := w.state.grammar
	if !g.mu.TryLock() {
		return false
	}
	defer g.mu.Unlock()
	if !w.begun && (g.full() || w.state.arena != g.mu.arena) {
		return false
	}
	return w.run(steps)
}

// Result returns the state behind the ids, and why it has no mask: ErrNotAllowed, ErrStuck or ErrWork. The
// walk must be done.
func (w *Walk) Result() (State, error) { return w.state, w.err }

// Only returns the token of a mask that allows no other, and false for any other mask. The walk must be done.
func (w *Walk) Only() (id int32, ok bool) {
	if w.err != nil {
		return 0, false
	}
	for i, word := range w.mask {
		switch {
		case word == 0:
		case ok || word&(word-1) != 0:
			return 0, false
		default:
			id, ok = int32(32*i+bits.TrailingZeros32(word)), true
		}
	}
	return id, ok
}

// Steps returns how many steps the walk has made.
func (w *Walk) Steps() int { return w.steps }

func (w *Walk) run(steps int) bool {
	if !w.begun && !w.begin() || w.cached() {
		return w.done
	}
	until := w.steps + steps
	for {
		if err := w.proceed(until); err != nil {
			w.end(err)
			return true
		}
		if int(w.at) < len(w.trie.bytes) {
			return false
		}
		if w.then == nil {
			break
		}
		w.trie, w.then, w.at = w.then, nil, 0
	}
	w.state.grammar.vocabulary.masks.put(w.key, w.mask, w.found)
	w.finish()
	return true
}

// begin follows the ids and prepares the visit of the trie. It returns false if the walk ends here.
func (w *Walk) begin() bool {
	g, s := w.state.grammar, &w.state
	s.enter()
	for _, id := range w.ids {
		text := g.vocabulary.bytesOf(id)
		if len(text) == 0 {
			return w.end(ErrNotAllowed)
		}
		next, err := s.follow(text)
		if err != nil {
			return w.end(err)
		}
		*s, w.steps = next, w.steps+len(text)
	}
	w.begun, w.key = true, maskKey{g.mu.number, s.node.id, s.usual}
	if w.cached() {
		return false
	}
	v := g.vocabulary
	if id, ok := w.spell(); ok {
		clear(w.mask)
		w.mask[id>>5] |= 1 << (id & 31)
		v.masks.put(w.key, w.mask, 1)
		w.finish()
		return false
	}
	reach, work := s.arena.plainReach(s.node, plainLengths[len(plainLengths)-1])
	w.count(work)
	w.trie, w.then = &v.plain, &v.slices[0].rest
	if i := slices.IndexFunc(v.slices, func(l slice) bool { return l.length <= reach }); i >= 0 {
		copy(w.mask, v.slices[i].mask)
		w.trie, w.then, w.found = &v.slices[i].rest, nil, v.slices[i].count
	} else {
		clear(w.mask)
	}
	if n := len(g.mu.visits); n > 0 {
		w.visits, g.mu.visits = g.mu.visits[n-1], g.mu.visits[:n-1]
	} else {
		w.visits = &visits{}
	}
	w.visits.begin()
	w.path[0], w.marks[0] = s.node, w.visits.of(s.node)
	return true
}

// cached ends the walk if the mask is known: another walk may have found it since the last piece.
func (w *Walk) cached() bool {
	if !w.state.grammar.vocabulary.masks.get(w.key, w.mask) {
		return false
	}
	w.finish()
	return true
}

// finish adds the end tokens to a mask that is otherwise complete.
func (w *Walk) finish() {
	if w.state.node.nullable {
		for _, id := range w.state.ends {
			w.mask[id>>5] |= 1 << (id & 31)
		}
	}
	if slices.IndexFunc(w.mask, func(w uint32) bool { return w != 0 }) < 0 {
		w.end(ErrStuck)
		return
	}
	w.end(nil)
}

// end ends the walk. It returns false.
func (w *Walk) end(err error) bool {
	w.done, w.err = true, err
	w.state.grammar.measure()
	if g := w.state.grammar; w.visits != nil {
		g.mu.visits, w.visits = append(g.mu.visits, w.visits), nil
	}
	return false
}

func (w *Walk) count(terms int) {
	w.work += terms
	w.steps += terms * termSteps
}

// proceed follows the trie and the derivatives of the state until as many steps are made.
func (w *Walk) proceed(until int) error {
	r, t, v := w.state.arena, w.trie, w.visits
	for int(w.at) < len(t.bytes) {
		if w.work > maxMaskWork {
			return ErrWork
		}
		if w.steps++; w.steps > until {
			return nil
		}
		i := w.at
		level := t.level[i]
		at, class := w.path[level], r.classOf[t.bytes[i]]
		tried := &v.classes[w.marks[level]]
		if !tried.has(class) {
			tried.add(class)
			w.count(int(r.costOf(at)))
			if w.work > maxMaskWork {
				return ErrWork
			}
		}
		var to *node
		if at.next != nil {
			to = at.next[class]
		}
		if to == nil {
			to = r.step(at, t.bytes[i])
		}
		if to.kind == kindNone {
			w.at = t.skip[i]
			continue
		}
		mark := v.of(to)
		if end := t.skip[i]; w.then != nil && end-i >= smallSubtree && w.open(to, mark) {
			for _, id := range t.ids[t.first[i]:t.first[end]] {
				w.mask[id>>5] |= 1 << (id & 31)
			}
			n := int(t.first[end] - t.first[i])
			w.found, w.steps, w.at = w.found+n, w.steps+n/4, end
			continue
		}
		w.path[level+1], w.marks[level+1] = to, mark
		for _, id := range t.ids[t.first[i]:t.first[i+1]] {
			w.mask[id>>5] |= 1 << (id & 31)
			w.found++
		}
		w.at++
	}
	return nil
}

// smallSubtree is the number of nodes below which a subtree is visited node by node.
const smallSubtree = 8

// open reports whether the longest plain tokens may follow a state, whichever they are.
func (w *Walk) open(n *node, mark int32) bool {
	known := &w.visits.open[mark]
	if *known == openUnknown {
		longest := plainLengths[len(plainLengths)-1]
		reach, work := w.state.arena.plainReach(n, longest)
		w.count(work)
		if *known = openNo; reach == longest {
			*known = openYes
		}
	}
	return *known == openYes
}

const (
	openUnknown = iota
	openYes
	openNo
)

// visits are the states of a walk, each with the classes of bytes that were tried there. Its memory is
// used again for other walks of the grammar.
type visits struct {
	number  uint32 // of the walk
	states  []visit
	classes []byteSet
	open    []uint8 // by index: see Walk.open
}

// visit is where a state's classes are, in the walk of a number.
type visit struct {
	walk  uint32
	index int32
}

func (v *visits) begin() {
	if v.number++; v.number == 0 {
		clear(v.states)
		v.number = 1
	}
	v.classes, v.open = v.classes[:0], v.open[:0]
}

// of returns the index of a state's classes.
func (v *visits) of(n *node) int32 {
	if int(n.id) >= len(v.states) {
		v.states = append(v.states, make([]visit, int(n.id)+1-len(v.states))...)
	}
	at := &v.states[n.id]
	if at.walk != v.number {
		*at = visit{v.number, int32(len(v.classes))}
		v.classes, v.open = append(v.classes, byteSet{}), append(v.open, openUnknown)
	}
	return at.index
}

// Mask sets mask, which has Words words, to the tokens that may follow: bit id%32 of word id/32. It
// returns ErrStuck if there is none, and ErrWork if finding them takes more than a mask may.
func (s State) Mask(mask []uint32) error {
	w := s.Walk(nil, mask)
	for !w.Run(1 << 20) { // a piece, so that others have the grammar between
	}
	_, err := w.Result()
	return err
}
