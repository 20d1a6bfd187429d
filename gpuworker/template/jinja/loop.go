package jinja

type forStatement struct {
	line      int
	target    target
	items     expression
	test      expression // nil: all items
	recursive bool
	body      []statement
	otherwise []statement
}

func (st *forStatement) execute(r *run, s *scope) signal {
	items := r.eval(st.items, s)
	r.line = st.line
	return st.rounds(r, s, items, 0)
}

// rounds executes the body for each item, or the else body if there are no items.
func (st *forStatement) rounds(r *run, s *scope, items Value, depth int) signal {
	l := &loopValue{statement: st, scope: s, depth: depth, index: -1, left: -1}
	l.pull = r.iterate(items)
	if st.test != nil {
		l.pull = st.filtered(r, s, l.pull)
	} else if n, ok := length(items); ok {
		l.left = n
	}
	for l.advance() {
		r.line = st.line
		r.step(1)
		inner := s.inner()
		inner.set("loop", l)
		st.target.assign(r, inner, l.item)
		if r.execute(st.body, inner) == breaks {
			return goesOn
		}
	}
	if l.index < 0 {
		return r.execute(st.otherwise, s.inner())
	}
	return goesOn
}

// filtered returns the items that pass the test, lazily.
func (st *forStatement) filtered(r *run, s *scope, pull func() (Value, bool)) func() (Value, bool) {
	return func() (Value, bool) {
		for {
			v, ok := pull()
			if !ok {
				return nil, false
			}
			r.step(1)
			inner := s.inner()
			st.target.assign(r, inner, v)
			if truth(r.eval(st.test, inner)) {
				return v, true
			}
		}
	}
}

// loopValue is the variable loop inside a loop. Items are pulled lazily, the next one when a
// property needs it.
type loopValue struct {
	statement *forStatement
	scope     *scope
	depth     int // of recursion
	pull      func() (Value, bool)
	left      int // items that pull has yet to give; -1 if not known
	index     int // of item
	item      Value
	before    Value
	ahead     []Value // pulled and not yet reached
	changed   *tuple  // what changed was asked about last
}

func (l *loopValue) fetch() bool {
	v, ok := l.pull()
	if ok {
		l.ahead = append(l.ahead, v)
		if l.left > 0 {
			l.left--
		}
	}
	return ok
}

func (l *loopValue) advance() bool {
	if len(l.ahead) == 0 && !l.fetch() {
		return false
	}
	l.before, l.item, l.ahead = l.item, l.ahead[0], l.ahead[1:]
	l.index++
	return true
}

func (l *loopValue) last() bool { return len(l.ahead) == 0 && !l.fetch() }

func (l *loopValue) length() int {
	if l.left < 0 {
		for l.fetch() {
		}
		l.left = 0
	}
	return l.index + 1 + len(l.ahead) + l.left
}

func (l *loopValue) member(name string) (Value, bool) {
	switch name {
	case "index":
		return l.index + 1, true
	case "index0":
		return l.index, true
	case "revindex":
		return l.length() - l.index, true
	case "revindex0":
		return l.length() - l.index - 1, true
	case "first":
		return l.index == 0, true
	case "last":
		return l.last(), true
	case "length":
		return l.length(), true
	case "depth":
		return l.depth + 1, true
	case "depth0":
		return l.depth, true
	case "previtem":
		if l.index == 0 {
			return &undefined{"there is no previous item"}, true
		}
		return l.before, true
	case "nextitem":
		if l.last() {
			return &undefined{"there is no next item"}, true
		}
		return l.ahead[0], true
	case "cycle":
		return &function{name, l.cycle}, true
	case "changed":
		return &function{name, l.hasChanged}, true
	}
	return nil, false
}

func (l *loopValue) cycle(r *run, a *callArguments) Value {
	if len(a.placed) == 0 || len(a.names) > 0 {
		r.fail("loop.cycle takes the items to cycle through")
	}
	return a.placed[l.index%len(a.placed)]
}

// hasChanged reports whether its arguments differ from those of the previous call.
func (l *loopValue) hasChanged(r *run, a *callArguments) Value {
	if len(a.names) > 0 {
		r.fail("loop.changed takes no named arguments")
	}
	now := newTuple(a.placed...)
	if l.changed != nil && r.equal(l.changed, now) {
		return false
	}
	l.changed = now
	return true
}

// recurse is a call of the loop with the items of the next level.
func (l *loopValue) recurse(r *run, a *callArguments) Value {
	if !l.statement.recursive {
		r.fail("The loop must have the 'recursive' marker to be called recursively.")
	}
	if len(a.placed) != 1 || len(a.names) > 0 {
		r.fail("loop takes one argument: what to loop over")
	}
	r.enter()
	text := r.capture(func() { l.statement.rounds(r, l.scope, a.placed[0], l.depth+1) })
	r.leave()
	return text
}
