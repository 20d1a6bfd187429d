package jinja

type macroStatement struct {
	line   int
	name   string
	params *params
	body   []statement
}

func (st *macroStatement) execute(_ *run, s *scope) signal {
	s.set(st.name, &macroValue{st.name, st.params, st.body, s})
	return goesOn
}

// callStatement calls a macro that calls the statement's body as caller.
type callStatement struct {
	line   int
	params *params
	call   *callExpression
	body   []statement
}

func (st *callStatement) execute(r *run, s *scope) signal {
	f := r.eval(st.call.of, s)
	a := st.call.args.eval(r, s)
	r.line = st.line
	caller := &macroValue{"caller", st.params, st.body, s}
	m, ok := f.(*macroValue)
	if !ok {
		r.defined(f)
		r.fail("{%% call %%} takes a call of a macro, not of a %s", typeName(f))
	}
	r.step(1)
	r.out.write(r.text(m.call(r, a, caller)))
	return goesOn
}

// macroValue is a macro with the variables around it.
type macroValue struct {
	name   string
	params *params
	body   []statement
	scope  *scope
}

// call executes the body with arguments and returns its text. Defaults are evaluated lazily.
func (m *macroValue) call(r *run, a *callArguments, caller *macroValue) Value {
	s := m.scope.inner()
	m.bind(r, s, a)
	if m.params.caller {
		var v Value = &undefined{"No caller defined"}
		if caller != nil {
			v = caller
		} else if given, ok := s.names["caller"]; ok {
			v = given
		}
		s.set("caller", v)
	} else if caller != nil {
		r.fail("macro '%s' takes no keyword argument 'caller'", m.name)
	}
	for i, name := range m.params.names {
		if _, ok := s.names[name]; ok {
			continue
		}
		if d := i - len(m.params.names) + len(m.params.defaults); d >= 0 {
			s.set(name, r.eval(m.params.defaults[d], s))
		} else {
			s.set(name, &undefined{"parameter '" + name + "' was not provided"})
		}
	}
	line := r.line
	text := r.capture(func() { r.execute(m.body, s) })
	r.line = line
	return text
}

// bind sets the variables of arguments.
func (m *macroValue) bind(r *run, s *scope, a *callArguments) {
	n := len(m.params.names)
	for i, v := range a.placed[:min(n, len(a.placed))] {
		s.set(m.params.names[i], v)
	}
	rest := &Dict{}
	for i, name := range a.names {
		_, taken := s.names[name]
		switch {
		case contains(m.params.names, name) && !taken, name == "caller" && m.params.caller:
			s.set(name, a.named[i])
		case m.params.kwargs:
			rest.put(str{text: name}, name, a.named[i])
		default:
			r.fail("macro '%s' takes no keyword argument '%s'", m.name, name)
		}
	}
	if m.params.kwargs {
		s.set("kwargs", rest)
	}
	switch {
	case m.params.varargs:
		s.set("varargs", newTuple(a.placed[min(n, len(a.placed)):]...))
	case len(a.placed) > n:
		r.fail("macro '%s' takes not more than %d argument(s)", m.name, n)
	}
}

func (m *macroValue) member(name string) (Value, bool) {
	switch name {
	case "name":
		return own(m.name), true
	case "arguments":
		t := &tuple{}
		for _, p := range m.params.names {
			t.items = append(t.items, own(p))
		}
		return t, true
	case "caller":
		return m.params.caller, true
	case "catch_kwargs":
		return m.params.kwargs, true
	case "catch_varargs":
		return m.params.varargs, true
	}
	return nil, false
}
