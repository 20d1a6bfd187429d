package jinja

// expression is a part of the tree that has a value.
type expression interface {
	eval(r *run, s *scope) Value
}

// eval evaluates a part within another.
func (r *run) eval(e expression, s *scope) Value {
	r.enter()
	v := e.eval(r, s)
	r.depth--
	return v
}

type (
	literalExpression struct{ value Value }
	nameExpression    struct {
		line int
		name string
	}
	listExpression  struct{ items []expression }
	tupleExpression struct{ items []expression }
	dictExpression  struct {
		line         int
		keys, values []expression
	}
	attributeExpression struct {
		line int
		of   expression
		name string
	}
	itemExpression struct {
		line    int
		of, key expression
	}
	sliceExpression struct {
		line                 int
		of, from, to, stride expression
	}
	conditionExpression struct {
		line                  int
		test, then, otherwise expression
	}
	callExpression struct {
		line int
		of   expression
		args *arguments
	}
	filterExpression struct {
		line   int
		in     expression
		name   string
		filter *filter // nil if unknown
		args   *arguments
	}
	testExpression struct {
		line int
		in   expression
		name string
		test *test // nil if unknown
		args *arguments
	}
	// bodyText is the input of a block's filters: the block's text, in r.body.
	bodyText struct{}
)

func (e *literalExpression) eval(*run, *scope) Value { return e.value }

func (e *nameExpression) eval(_ *run, s *scope) Value {
	if v, ok := s.get(e.name); ok {
		return v
	}
	return &undefined{"'" + e.name + "' is undefined"}
}

func (r *run) evalAll(list []expression, s *scope) []Value {
	out := make([]Value, len(list))
	for i, e := range list {
		out[i] = r.eval(e, s)
	}
	return out
}

func (e *listExpression) eval(r *run, s *scope) Value  { return &List{r.evalAll(e.items, s)} }
func (e *tupleExpression) eval(r *run, s *scope) Value { return newTuple(r.evalAll(e.items, s)...) }

func (e *dictExpression) eval(r *run, s *scope) Value {
	d := &Dict{}
	for i, k := range e.keys {
		key, value := r.eval(k, s), r.eval(e.values[i], s)
		r.line = e.line
		d.put(key, r.key(key), value)
	}
	return d
}

func (e *attributeExpression) eval(r *run, s *scope) Value {
	v := r.eval(e.of, s)
	r.line = e.line
	return r.attribute(v, e.name)
}

func (e *itemExpression) eval(r *run, s *scope) Value {
	v, key := r.eval(e.of, s), r.eval(e.key, s)
	r.line = e.line
	return r.subscript(v, key)
}

func (e *sliceExpression) eval(r *run, s *scope) Value {
	v := r.eval(e.of, s)
	var bounds [3]Value
	for i, bound := range []expression{e.from, e.to, e.stride} {
		if bound != nil {
			bounds[i] = r.eval(bound, s)
		}
	}
	r.line = e.line
	return r.cut(v, bounds[0], bounds[1], bounds[2])
}

func (e *conditionExpression) eval(r *run, s *scope) Value {
	switch {
	case truth(r.eval(e.test, s)):
		return r.eval(e.then, s)
	case e.otherwise != nil:
		return r.eval(e.otherwise, s)
	}
	return &undefined{"the inline if-expression evaluated to false and no else section was defined"}
}

func (e *callExpression) eval(r *run, s *scope) Value {
	f := r.eval(e.of, s)
	a := e.args.eval(r, s)
	r.line = e.line
	return r.call(e.line, f, a)
}

func (e *filterExpression) eval(r *run, s *scope) Value {
	v := r.eval(e.in, s)
	a := e.args.eval(r, s)
	r.line = e.line
	return r.filter(e.filter, e.name, v, a)
}

func (e *testExpression) eval(r *run, s *scope) Value {
	v := r.eval(e.in, s)
	a := e.args.eval(r, s)
	r.line = e.line
	return r.test(e.test, e.name, v, a)
}

func (bodyText) eval(r *run, _ *scope) Value { return r.body }

// arguments are those of a call in the source.
type arguments struct {
	placed     []expression
	names      []string
	named      []expression
	list, dict expression
}

var noArguments = &callArguments{}

func (a *arguments) eval(r *run, s *scope) *callArguments {
	if a == nil {
		return noArguments
	}
	out := &callArguments{placed: r.evalAll(a.placed, s), names: a.names, named: r.evalAll(a.named, s)}
	if a.list != nil {
		out.placed = append(out.placed, r.items(r.eval(a.list, s))...)
	}
	if a.dict != nil {
		v := r.eval(a.dict, s)
		d, ok := v.(*Dict)
		if !ok {
			r.defined(v)
			r.fail("argument after ** must be a mapping, not %s", typeName(v))
		}
		out.names = append([]string(nil), out.names...)
		for _, e := range d.entries {
			name := r.string(e.key, "the name of an argument")
			if contains(out.names, name) {
				r.fail("the argument %q is given twice", name)
			}
			out.names, out.named = append(out.names, name), append(out.named, e.value)
		}
	}
	return out
}
