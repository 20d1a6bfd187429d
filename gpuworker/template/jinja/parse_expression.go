package jinja

import "strings"

// tuple reads an expression, or several with commas between.
func (p *parser) tuple() expression { return p.tupleOf(p.expression, false) }

// tupleOf reads items; in brackets there may be none.
func (p *parser) tupleOf(item func() expression, brackets bool) expression {
	var items []expression
	comma := false
	for !p.tupleEnds() {
		items = append(items, item())
		if !p.skipOperator(",") {
			break
		}
		comma = true
	}
	if comma || len(items) == 0 && brackets {
		return &tupleExpression{items}
	}
	if len(items) == 0 {
		p.unexpected("an expression")
	}
	return items[0]
}

func (p *parser) tupleEnds() bool {
	t := p.now()
	return t.kind == tokenClose || t.kind == tokenTagClose || t.is(tokenOperator, ")") || t.kind == tokenEnd
}

// expression reads a condition "a if b else c", or what binds stronger.
func (p *parser) expression() expression {
	p.nest()
	depth := p.depth
	e := p.or()
	for p.isName("if") {
		p.nest()
		n := &conditionExpression{line: p.next().line, then: e}
		n.test = p.or()
		if p.skipName("else") {
			n.otherwise = p.expression()
		}
		e = n
	}
	p.depth = depth - 1
	return e
}

// joiner makes one expression of an operator and its operands.
type joiner func(line int, op string, a, b expression) expression

// chain reads operands of a level with its left-associative operators between.
func (p *parser) chain(operand func() expression, join joiner, kind tokenKind, ops ...string) expression {
	e := operand()
	depth := p.depth
	for {
		t := p.now()
		if t.kind != kind || !contains(ops, t.text) {
			p.depth = depth
			return e
		}
		p.nest()
		p.pos++
		e = join(t.line, t.text, e, operand())
	}
}

func contains(list []string, s string) bool {
	for _, item := range list {
		if item == s {
			return true
		}
	}
	return false
}

func (p *parser) or() expression {
	return p.chain(p.and, func(_ int, _ string, a, b expression) expression { return &orExpression{a, b} }, tokenName, "or")
}

func (p *parser) and() expression {
	return p.chain(p.not, func(_ int, _ string, a, b expression) expression { return &andExpression{a, b} }, tokenName, "and")
}

func (p *parser) not() expression {
	if p.skipName("not") {
		p.nest()
		defer func() { p.depth-- }()
		return &notExpression{p.not()}
	}
	return p.comparison()
}

func (p *parser) comparison() expression {
	n := &compareExpression{line: p.now().line, first: p.sum()}
	for {
		t := p.now()
		switch {
		case t.kind == tokenOperator && contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), t.is(tokenName, "in"):
			p.pos++
			n.rest = append(n.rest, operand{t.text, p.sum()})
		case t.is(tokenName, "not") && p.peek().is(tokenName, "in"):
			p.pos += 2
			n.rest = append(n.rest, operand{"not in", p.sum()})
		case len(n.rest) == 0:
			return n.first
		default:
			return n
		}
	}
}

func binary(line int, op string, a, b expression) expression {
	return &binaryExpression{line, op, a, b}
}

func (p *parser) sum() expression {
	return p.chain(p.concatenation, binary, tokenOperator, "+", "-")
}

func (p *parser) concatenation() expression {
	first := p.product()
	if !p.isOperator("~") {
		return first
	}
	n := &concatExpression{line: p.now().line, parts: []expression{first}}
	for p.skipOperator("~") {
		n.parts = append(n.parts, p.product())
	}
	return n
}

func (p *parser) product() expression {
	return p.chain(p.power, binary, tokenOperator, "*", "/", "//", "%")
}

func (p *parser) power() expression {
	return p.chain(func() expression { return p.unary(true) }, binary, tokenOperator, "**")
}

// unary reads a sign and its operand, or an operand with its filters, tests, calls and subscripts.
func (p *parser) unary(filters bool) expression {
	p.nest()
	depth := p.depth
	var e expression
	if t := p.now(); t.is(tokenOperator, "-") || t.is(tokenOperator, "+") {
		p.pos++
		e = &signExpression{t.line, t.text == "-", p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	for filters {
		switch {
		case p.isOperator("|"):
			p.nest()
			e = p.filters(e, false)
		case p.isName("is"):
			p.nest()
			e = p.test(e)
		case p.isOperator("("):
			p.nest()
			e = p.call(e)
		default:
			filters = false
		}
	}
	p.depth = depth - 1
	return e
}

func (p *parser) primary() expression {
	p.nest()
	defer func() { p.depth-- }()
	t := p.next()
	switch {
	case t.kind == tokenName:
		return p.named(t)
	case t.kind == tokenString:
		var text strings.Builder
		text.WriteString(t.text)
		for p.now().kind == tokenString {
			text.WriteString(p.next().text)
		}
		return &literalExpression{own(text.String())}
	case t.kind == tokenInteger || t.kind == tokenFloat:
		return &literalExpression{numberOf(t)}
	case t.is(tokenOperator, "("):
		e := p.tupleOf(p.expression, true)
		p.operator(")")
		return e
	case t.is(tokenOperator, "["):
		return &listExpression{p.items("]")}
	case t.is(tokenOperator, "{"):
		return p.dict(t.line)
	}
	failAt(t.line, "%s stands where an expression is expected", t)
	return nil
}

func (p *parser) named(t token) expression {
	switch t.text {
	case "true", "True":
		return &literalExpression{true}
	case "false", "False":
		return &literalExpression{false}
	case "none", "None":
		return &literalExpression{nil}
	}
	for _, m := range p.macros {
		m.notes(t.text)
	}
	return &nameExpression{t.line, t.text}
}

// items reads expressions with commas between, up to a bracket.
func (p *parser) items(closing string) []expression {
	var items []expression
	for !p.skipOperator(closing) {
		if len(items) > 0 {
			p.operator(",")
			if p.skipOperator(closing) {
				break
			}
		}
		items = append(items, p.expression())
	}
	return items
}

func (p *parser) dict(line int) expression {
	n := &dictExpression{line: line}
	for !p.skipOperator("}") {
		if len(n.keys) > 0 {
			p.operator(",")
			if p.skipOperator("}") {
				break
			}
		}
		n.keys = append(n.keys, p.expression())
		p.operator(":")
		n.values = append(n.values, p.expression())
	}
	return n
}
