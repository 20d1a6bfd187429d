package jinja

// params are those of a macro or of the block of a call, and what its body asks for beyond them.
type params struct {
	names    []string
	defaults []expression // of the last ones
	caller   bool         // the body names caller
	kwargs   bool
	varargs  bool
}

// notes records that the body names something.
func (m *params) notes(name string) {
	switch name {
	case "caller":
		m.caller = true
	case "kwargs":
		m.kwargs = true
	case "varargs":
		m.varargs = true
	}
}

func (p *parser) params(m *params) {
	p.operator("(")
	for n := 0; !p.skipOperator(")"); n++ {
		if n > 0 {
			p.operator(",")
		}
		line := p.now().line
		name := p.name()
		if contains([]string{"true", "false", "none", "True", "False", "None"}, name) || contains(m.names, name) {
			failAt(line, "%q cannot be the name of a parameter here", name)
		}
		m.names = append(m.names, name)
		if p.skipOperator("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			failAt(line, "the parameter %q without a default follows one with a default", name)
		}
	}
}

// inMacro reads the parameters and body of a macro or the like.
func (p *parser) inMacro(m *params, read func()) {
	p.macros = append(p.macros, m)
	p.apart(read)
	p.macros = p.macros[:len(p.macros)-1]
}

func (p *parser) macro(line int) statement {
	n := &macroStatement{line: line, name: p.name(), params: &params{}}
	p.inMacro(n.params, func() {
		p.params(n.params)
		n.body = p.body("macro")
	})
	return n
}

func (p *parser) callBlock(line int) statement {
	n := &callStatement{line: line, params: &params{}}
	var call expression
	p.inMacro(n.params, func() {
		if p.isOperator("(") {
			p.params(n.params)
		}
	})
	call = p.expression()
	var ok bool
	if n.call, ok = call.(*callExpression); !ok {
		failAt(line, "{%% call %%} takes a call of a macro")
	}
	p.inMacro(n.params, func() { n.body = p.body("call") })
	return n
}
