package jinja

// function is what templates can call: a global, a method of a value, or one of the caller's.
type function struct {
	name string
	call func(r *run, a *callArguments) Value
}

// NewFunction returns a function of up to as many arguments as it has parameters; missing ones are
// nil. A text that it returns is the caller's.
func NewFunction(name string, params []string, call func(args []Value) (Value, error)) Value {
	s := &signature{names: params}
	return &function{name, func(r *run, a *callArguments) Value {
		args, pure := r.bind(name, s, a), true
		for i, v := range args {
			if !given(v) {
				args[i] = nil
				continue
			}
			text, ok := textOf(v)
			if pure = pure && (ok && text.pure() || v == nil || isNumber(v)); ok {
				args[i] = text.text
			}
		}
		out, err := call(args)
		if err != nil {
			r.fail("%s: %v", name, err)
		}
		if text, ok := out.(string); ok && pure {
			return own(text)
		}
		return valueOf(out)
	}}
}

// simple is a function with a signature.
func simple(name, params string, call func(r *run, a []Value) Value) *function {
	s := takes(params)
	return &function{name, func(r *run, a *callArguments) Value { return call(r, r.bind(name, &s, a)) }}
}

// call calls a value. Each call is a step.
func (r *run) call(line int, f Value, a *callArguments) Value {
	r.step(1)
	switch f := f.(type) {
	case *function:
		return f.call(r, a)
	case *macroValue:
		return f.call(r, a, nil)
	case *loopValue:
		return f.recurse(r, a)
	}
	r.line = line
	r.defined(f)
	r.fail("'%s' object is not callable", typeName(f))
	return nil
}

// defined fails for an undefined value, with its reason.
func (r *run) defined(v Value) {
	if u, ok := v.(*undefined); ok {
		r.fail("%s", u.text)
	}
}
