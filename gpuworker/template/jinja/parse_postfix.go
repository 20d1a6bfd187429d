package jinja

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(e expression) expression {
	depth := p.depth
	for {
		t := p.now()
		switch {
		case t.is(tokenOperator, "."):
			p.pos++
			e = p.attribute(t.line, e)
		case t.is(tokenOperator, "["):
			p.pos++
			e = p.subscript(t.line, e)
		case t.is(tokenOperator, "("):
			e = p.call(e)
		default:
			p.depth = depth
			return e
		}
		p.nest()
	}
}

func (p *parser) attribute(line int, e expression) expression {
	switch t := p.next(); t.kind {
	case tokenName:
		return &attributeExpression{line, e, t.text}
	case tokenInteger:
		return &itemExpression{line, e, &literalExpression{numberOf(t)}}
	default:
		failAt(t.line, "%s stands where a name or number is expected", t)
		return nil
	}
}

func (p *parser) subscript(line int, e expression) expression {
	if p.isOperator("]") {
		p.unexpected("an expression")
	}
	var from, to, stride expression
	if !p.isOperator(":") {
		from = p.expression()
	}
	if !p.isOperator(":") {
		if p.isOperator(",") {
			failAt(line, "a subscript of several items is not supported")
		}
		p.operator("]")
		return &itemExpression{line, e, from}
	}
	p.pos++
	if !p.isOperator(":") && !p.isOperator("]") {
		to = p.expression()
	}
	if p.skipOperator(":") && !p.isOperator("]") {
		stride = p.expression()
	}
	if p.isOperator(",") {
		failAt(line, "a subscript of several items is not supported")
	}
	p.operator("]")
	return &sliceExpression{line, e, from, to, stride}
}

func (p *parser) call(e expression) expression {
	line := p.now().line
	return &callExpression{line, e, p.arguments()}
}

// arguments reads those of a call: by place, by name, and lists and dictionaries of them.
func (p *parser) arguments() *arguments {
	line := p.now().line
	p.operator("(")
	a := &arguments{}
	for n := 0; !p.skipOperator(")"); n++ {
		if n > 0 {
			p.operator(",")
			if p.skipOperator(")") {
				break
			}
		}
		var ordered bool
		switch {
		case p.skipOperator("*"):
			ordered = a.list == nil && a.dict == nil
			a.list = p.expression()
		case p.skipOperator("**"):
			ordered = a.dict == nil
			a.dict = p.expression()
		case p.now().kind == tokenName && p.peek().is(tokenOperator, "="):
			ordered = a.dict == nil
			name := p.name()
			p.pos++
			if contains(a.names, name) {
				failAt(line, "the argument %q is given twice", name)
			}
			a.names, a.named = append(a.names, name), append(a.named, p.expression())
		default:
			ordered = a.list == nil && a.dict == nil && len(a.names) == 0
			a.placed = append(a.placed, p.expression())
		}
		if !ordered {
			failAt(line, "the arguments are out of order")
		}
	}
	return a
}

// filters reads what follows bars, or without the first bar if it has been read.
func (p *parser) filters(e expression, inline bool) expression {
	depth := p.depth
	for inline || p.isOperator("|") {
		if !inline {
			p.pos++
		}
		inline = false
		p.nest()
		n := &filterExpression{line: p.now().line, in: e, name: p.dotted()}
		if p.isOperator("(") {
			n.args = p.arguments()
		}
		n.filter = filters[n.name]
		e = n
	}
	p.depth = depth
	return e
}

func (p *parser) dotted() string {
	name := p.name()
	for p.skipOperator(".") {
		name += "." + p.name()
	}
	return name
}

// test reads what follows "is". One argument may stand without brackets.
func (p *parser) test(e expression) expression {
	line := p.next().line
	negated := p.skipName("not")
	n := &testExpression{line: line, in: e, name: p.dotted(), args: &arguments{}}
	n.test = tests[n.name]
	switch t := p.now(); {
	case t.is(tokenOperator, "("):
		n.args = p.arguments()
	case t.is(tokenName, "is"):
		failAt(t.line, "tests with is cannot be chained")
	case t.is(tokenName, "else") || t.is(tokenName, "or") || t.is(tokenName, "and"):
	case t.kind == tokenName || t.kind == tokenString || t.kind == tokenInteger || t.kind == tokenFloat,
		t.is(tokenOperator, "["), t.is(tokenOperator, "{"):
		n.args.placed = []expression{p.postfix(p.primary())}
	}
	if negated {
		return &notExpression{n}
	}
	return n
}
