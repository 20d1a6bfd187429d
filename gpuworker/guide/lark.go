package guide

import (
	"regexp"
	"slices"
	"unicode/utf8"
)

// lark builds the rules of a grammar, of which rule root is named start, and returns the paths that its
// JSON schemas ignore.
func (b *builder) lark(s Source, root int) []string {
	p := &larkBuilder{larkParser: larkParser{builder: b, in: s.Text, defs: map[string]*larkDefinition{}}, source: s, skipped: b.empty, byRule: map[int32]*larkDefinition{}}
	dropped := p.grammar(root)
	if p.err != nil && p.err.Path == "" {
		p.err.Path = p.position(p.here)
	}
	return dropped
}

// grammar reads the grammar and builds its rules.
func (p *larkBuilder) grammar(root int) []string {
	p.read()
	start := p.defs["start"]
	if start == nil {
		p.problem(ErrSyntax, len(p.in), "the rule start is not defined")
	}
	for _, d := range p.order {
		if p.err != nil {
			return nil
		}
		if d.rule = root; d != start {
			d.rule = p.rule()
		}
		p.byRule[int32(d.rule)] = d
	}
	var ignored []*node
	for _, e := range p.ignored {
		ignored = append(ignored, p.terminal(e))
	}
	if len(ignored) > 0 {
		p.skipped = p.count(p.alt(ignored...), 0, unbounded)
	}
	for _, d := range p.order {
		switch {
		case p.err != nil:
			return nil
		case d.terminal:
			p.terminalNamed(d)
		case d.lazy:
			p.bodies[d.rule] = p.lexeme(p.shortest(d))
		default:
			p.bodies[d.rule] = p.rules(d)
		}
	}
	slices.Sort(p.dropped)
	return p.dropped
}

// larkBuilder builds the terms of a grammar in Lark's notation.
type larkBuilder struct {
	larkParser
	source  Source
	skipped *node // what may come behind each terminal of a rule
	dropped []string
	here    int // the expression that is built, for errors
	byRule  map[int32]*larkDefinition
}

// lexeme is a terminal of a rule.
func (p *larkBuilder) lexeme(n *node) *node { return p.cat(n, p.skipped) }

// rules is the body of a rule. Alternatives that begin with the rule itself are repetitions: a: a "x" | "y"
// is a "y" and any number of "x".
func (p *larkBuilder) rules(d *larkDefinition) *node {
	self := p.call(d.rule)
	var first, more []*node
	for _, e := range d.body.kids {
		all := p.sequenceOf(e)
		if len(all) > 0 && all[0] == self {
			more = append(more, p.seq(all[1:]...))
		} else {
			first = append(first, p.seq(all...))
		}
	}
	n := p.alt(first...)
	if len(more) == 0 {
		return n
	}
	return p.cat(n, p.count(p.alt(more...), 0, unbounded))
}

// sequenceOf returns the terms of an alternative of a rule.
func (p *larkBuilder) sequenceOf(e *larkExpr) []*node {
	if len(e.kids) > 1 {
		p.problem(ErrUnsupported, e.at, "& outside of a terminal")
		return nil
	}
	out := make([]*node, len(e.kids[0].kids))
	for i, kid := range e.kids[0].kids {
		out[i] = p.nonterminal(kid)
	}
	return out
}

// nonterminal is an expression of a rule.
func (p *larkBuilder) nonterminal(e *larkExpr) *node {
	if p.spend(1); p.err != nil {
		return p.none
	}
	switch e.op {
	case larkAlt:
		kids := make([]*node, len(e.kids))
		for i, kid := range e.kids {
			kids[i] = p.seq(p.sequenceOf(kid)...)
		}
		return p.alt(kids...)
	case larkRepeat:
		n := p.nonterminal(e.kids[0])
		p.stand(e)
		return p.count(n, e.low, e.high)
	case larkNot:
		p.problem(ErrUnsupported, e.at, "~ outside of a terminal")
		return p.none
	case larkName:
		if d := p.named(e); d != nil && !d.terminal {
			return p.call(d.rule)
		}
	case larkJSON:
		return p.lexeme(p.schemaOf(e))
	case larkCat, larkAnd, larkString, larkRegex, larkRange:
	}
	return p.lexeme(p.terminal(e))
}

// named returns the definition of a name, nil if there is none.
func (p *larkBuilder) named(e *larkExpr) *larkDefinition {
	d := p.defs[e.text]
	if d == nil {
		p.problem(ErrSyntax, e.at, "%.40q is not defined", e.text)
	}
	return d
}

// schemaOf is a value of a JSON schema.
func (p *larkBuilder) schemaOf(e *larkExpr) *node {
	rule := p.rule()
	s := p.source
	s.Kind, s.Text = JSONSchema, e.text
	dropped := p.builder.source(s, rule)
	if p.err != nil {
		p.err.Path = p.position(e.at) + ", " + p.err.Path
		return p.none
	}
	if p.path = ""; len(dropped) > 0 {
		at := p.position(e.at)
		for _, path := range dropped {
			p.dropped = append(p.dropped, at+", "+path)
		}
	}
	return p.call(rule)
}

// stand says at which expression a problem is found. Its position is named if there is one, because that
// reads the source up to it.
func (p *larkBuilder) stand(e *larkExpr) {
	if p.err == nil {
		p.here = e.at
	}
}

// terminal is an expression of a terminal.
func (p *larkBuilder) terminal(e *larkExpr) *node {
	if p.spend(1); p.err != nil {
		return p.none
	}
	p.stand(e)
	kids := make([]*node, len(e.kids))
	for i, kid := range e.kids {
		kids[i] = p.terminal(kid)
	}
	p.stand(e)
	switch e.op {
	case larkAlt:
		return p.alt(kids...)
	case larkCat:
		return p.seq(kids...)
	case larkRepeat:
		return p.count(kids[0], e.low, e.high)
	case larkAnd:
		if len(kids) == 1 {
			return kids[0]
		}
		for i := range kids {
			kids[i] = p.flat(kids[i])
		}
		return p.determinise(p.and(kids...))
	case larkNot: // of the texts that are UTF-8, as tokens are
		return p.determinise(p.and(p.freeText(nil, nil), p.not(p.flat(kids[0]))))
	case larkString:
		if e.flags == "" {
			return p.lit(e.text)
		}
		return p.pattern(plain, "(?i)"+regexp.QuoteMeta(e.text), true)
	case larkRegex:
		if e.flags != "" {
			return p.pattern(plain, "(?"+e.flags+")"+e.text, true)
		}
		return p.pattern(plain, e.text, true)
	case larkRange:
		low, _ := utf8.DecodeRuneInString(e.text)
		high, _ := utf8.DecodeRuneInString(e.flags)
		return p.chars(plain, []rune{low, high})
	case larkName:
		d := p.named(e)
		if d == nil {
			return p.none
		}
		if !d.terminal {
			p.problem(ErrSyntax, e.at, "the rule %.40q in a terminal", e.text)
			return p.none
		}
		if d.state == larkBuilding {
			p.problem(ErrUnsupported, e.at, "the terminal %.40q contains itself: only rules may", e.text)
			return p.none
		}
		p.terminalNamed(d)
		return p.call(d.rule)
	default:
		p.problem(ErrUnsupported, e.at, "%%json in a terminal")
		return p.none
	}
}

// terminalNamed builds a terminal, unless it is built.
func (p *larkBuilder) terminalNamed(d *larkDefinition) {
	if d.state != larkOpen || p.err != nil {
		return
	}
	d.state = larkBuilding
	p.bodies[d.rule] = p.terminal(d.body)
	d.state = larkBuilt
}

// flat is a term of a terminal without calls: the terminals that it names become automata.
func (p *larkBuilder) flat(n *node) *node {
	if p.spend(1); p.err != nil {
		return p.none
	}
	switch n.kind {
	case kindCall:
		d := p.byRule[n.low]
		if d.regular == nil {
			d.regular = p.determinise(p.flat(p.bodies[n.low]))
		}
		return d.regular
	case kindCat:
		return p.cat(p.flat(n.a), p.flat(n.b))
	case kindRep:
		return p.rep(p.flat(n.a), int(n.low), int(n.high))
	case kindAlt:
		kids := make([]*node, len(n.kids))
		for i, k := range n.kids {
			kids[i] = p.flat(k)
		}
		return p.alt(kids...)
	default:
		return n
	}
}

// shortest is a lazy rule: its texts of which no beginning is one of them.
func (p *larkBuilder) shortest(d *larkDefinition) *node {
	n := p.terminal(d.body)
	if d.suffix != nil {
		n = p.cat(n, p.terminal(d.suffix))
	}
	n = p.determinise(p.flat(n))
	switch {
	case n.nullable:
		return p.empty
	case n.kind != kindDFA:
		return n
	}
	short := *n.dfa
	short.next = slices.Clone(short.next)
	for state, ends := range short.accept {
		if ends {
			for class := range short.classes {
				short.next[state*short.classes+class] = -1
			}
		}
	}
	p.tables += 4 * len(short.next)
	return p.automaton(&short, n.low)
}
