package jinja

// statement is a part of the tree that is executed.
type statement interface {
	execute(r *run, s *scope) signal
}

// signal is how a statement ended.
type signal int

const (
	goesOn signal = iota
	breaks
	continues
)

func (r *run) execute(body []statement, s *scope) signal {
	r.enter()
	for _, st := range body {
		if sig := st.execute(r, s); sig != goesOn {
			r.depth--
			return sig
		}
	}
	r.depth--
	return goesOn
}

type (
	textStatement   struct{ text str }
	jumpStatement   signal
	outputStatement struct {
		line int
		e    expression
	}
	branch struct {
		test expression
		body []statement
	}
	ifStatement struct {
		branches  []branch
		otherwise []statement
	}
	setStatement struct {
		line   int
		target target
		value  expression
	}
	// captureStatement sets a name to the text of a block.
	captureStatement struct {
		line    int
		target  target
		filters expression // of bodyText
		body    []statement
	}
	filterStatement struct {
		line     int
		filtered expression // of bodyText
		body     []statement
	}
	// withStatement is a block with variables of its own.
	withStatement struct {
		targets []target
		values  []expression
		body    []statement
	}
)

func (st textStatement) execute(r *run, _ *scope) signal {
	r.out.write(st.text)
	return goesOn
}

func (st jumpStatement) execute(*run, *scope) signal { return signal(st) }

func (st *outputStatement) execute(r *run, s *scope) signal {
	r.line = st.line
	v := r.eval(st.e, s)
	r.line = st.line
	r.out.write(r.text(v))
	return goesOn
}

func (st *ifStatement) execute(r *run, s *scope) signal {
	for _, b := range st.branches {
		if truth(r.eval(b.test, s)) {
			return r.execute(b.body, s)
		}
	}
	return r.execute(st.otherwise, s)
}

func (st *setStatement) execute(r *run, s *scope) signal {
	v := r.eval(st.value, s)
	st.target.assign(r, s, v)
	return goesOn
}

func (st *captureStatement) execute(r *run, s *scope) signal {
	st.target.assign(r, s, r.blockText(st.line, st.body, st.filters, s))
	return goesOn
}

func (st *filterStatement) execute(r *run, s *scope) signal {
	r.out.write(r.text(r.blockText(st.line, st.body, st.filtered, s)))
	return goesOn
}

// blockText is the text of a block, filtered.
func (r *run) blockText(line int, body []statement, filtered expression, s *scope) Value {
	inner := s.inner()
	text := r.capture(func() { r.execute(body, inner) })
	outer := r.body
	r.body = text
	r.line = line
	v := r.eval(filtered, s)
	r.body = outer
	return v
}

func (st *withStatement) execute(r *run, s *scope) signal {
	inner := s.inner()
	values := r.evalAll(st.values, s)
	for i, t := range st.targets {
		t.assign(r, inner, values[i])
	}
	return r.execute(st.body, inner)
}

// target is the left side of an assignment.
type target interface {
	assign(r *run, s *scope, v Value)
}

type (
	nameTarget      string
	attributeTarget struct {
		line        int
		space, name string
	}
	tupleTarget struct {
		line  int
		parts []target
	}
)

func (t nameTarget) assign(_ *run, s *scope, v Value) { s.set(string(t), v) }

func (t *attributeTarget) assign(r *run, s *scope, v Value) {
	r.line = t.line
	space, _ := s.get(t.space)
	ns, ok := space.(*namespace)
	if !ok {
		r.fail("cannot assign attribute on non-namespace object")
	}
	r.step(1)
	ns.attributes.put(own(t.name), t.name, v)
}

func (t *tupleTarget) assign(r *run, s *scope, v Value) {
	r.line = t.line
	r.defined(v)
	if _, ok := iterate(v); !ok {
		r.fail("cannot unpack non-iterable %s object", typeName(v))
	}
	items := r.items(v)
	if len(items) != len(t.parts) {
		r.fail("%d values cannot be unpacked into %d names", len(items), len(t.parts))
	}
	for i, part := range t.parts {
		part.assign(r, s, items[i])
	}
}
