package jinja

// statement parses a tag and everything up to the tag that ends its block. It stops before the end
// of the last tag.
func (p *parser) statement() statement {
	t := p.now()
	if t.kind != tokenName {
		p.unexpected("the name of a tag")
	}
	p.pos++
	switch t.text {
	case "set":
		return p.set(t.line)
	case "if":
		return p.condition()
	case "for":
		return p.loop(t.line)
	case "break", "continue":
		if p.loops == 0 {
			failAt(t.line, "{%% %s %%} stands outside of a loop", t.text)
		}
		return jumpStatement(map[string]signal{"break": breaks, "continue": continues}[t.text])
	case "macro":
		return p.macro(t.line)
	case "call":
		return p.callBlock(t.line)
	case "filter":
		return p.filterBlock(t.line)
	case "with":
		return p.with()
	case "generation":
		var body []statement
		p.apart(func() { body = p.body("generation") })
		return &withStatement{body: body}
	case "print":
		return &outputStatement{t.line, p.expression()}
	case "include", "import", "from", "extends":
		failAt(t.line, "a chat template must not read other templates: {%% %s %%}", t.text)
	case "block", "autoescape", "do", "trans", "debug":
		failAt(t.line, "the tag {%% %s %%} is not supported", t.text)
	}
	failAt(t.line, "unknown tag {%% %s %%}", t.text)
	return nil
}

func (p *parser) set(line int) statement {
	target := p.target(true)
	if p.skipOperator("=") {
		return &setStatement{line, target, p.tuple()}
	}
	filters := p.filters(bodyText{}, false)
	var body []statement
	p.apart(func() { body = p.body("set") })
	return &captureStatement{line, target, filters, body}
}

func (p *parser) condition() statement {
	n := &ifStatement{}
	for {
		test := p.tupleOf(p.or, false)
		p.skipOperator(":")
		p.tagClose()
		n.branches = append(n.branches, branch{test, p.statements("if", "elif", "else", "endif")})
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.skipOperator(":")
			p.tagClose()
			n.otherwise = p.statements("if", "endif")
			p.pos++
		}
		return n
	}
}

func (p *parser) loop(line int) statement {
	n := &forStatement{line: line, target: p.target(false)}
	if !p.skipName("in") {
		p.unexpected("'in'")
	}
	n.items = p.tupleOf(p.or, false)
	if p.skipName("if") {
		n.test = p.expression()
	}
	n.recursive = p.skipName("recursive")
	p.skipOperator(":")
	p.tagClose()
	p.loops++
	if n.recursive {
		p.apart(func() { p.loops = 1; n.body = p.statements("for", "else", "endfor") })
	} else {
		n.body = p.statements("for", "else", "endfor")
	}
	p.loops--
	if p.next().text == "else" {
		p.skipOperator(":")
		p.tagClose()
		n.otherwise = p.statements("for", "endfor")
		p.pos++
	}
	return n
}

func (p *parser) with() statement {
	n := &withStatement{}
	for p.now().kind != tokenTagClose && !p.isOperator(":") {
		if len(n.targets) > 0 {
			p.operator(",")
		}
		n.targets = append(n.targets, p.target(false))
		p.operator("=")
		n.values = append(n.values, p.expression())
	}
	n.body = p.body("with")
	return n
}

func (p *parser) filterBlock(line int) statement {
	n := &filterStatement{line: line}
	n.filtered = p.filters(bodyText{}, true)
	p.apart(func() { n.body = p.body("filter") })
	return n
}

// target parses the left side of an assignment: a name, an attribute of a namespace, or several
// names.
func (p *parser) target(attributes bool) target {
	line := p.now().line
	if attributes && p.peek().is(tokenOperator, ".") {
		space := p.name()
		p.pos++
		return &attributeTarget{line, space, p.name()}
	}
	return p.asTarget(line, p.tupleOf(p.primary, false))
}

// asTarget turns an expression of names and tuples of them into a target.
func (p *parser) asTarget(line int, e expression) target {
	switch e := e.(type) {
	case *nameExpression:
		return nameTarget(e.name)
	case *tupleExpression:
		t := &tupleTarget{line: line}
		for _, item := range e.items {
			t.parts = append(t.parts, p.asTarget(line, item))
		}
		return t
	}
	failAt(line, "only names and tuples of names can be assigned to")
	return nil
}
