package jinja

import "slices"

// parser builds the tree of a template by recursive descent. Its depth is bounded, and so is the
// depth of the tree.
type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int       // loops around the place within the innermost macro or the like
	macros []*params // macros and the like around the place, innermost last
}

func (p *parser) now() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokenEnd {
		p.pos++
	}
	return t
}

func (p *parser) peek() token { return p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) isName(name string) bool   { return p.now().is(tokenName, name) }
func (p *parser) isOperator(op string) bool { return p.now().is(tokenOperator, op) }

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipOperator(op string) bool {
	if p.isOperator(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) operator(op string) {
	if !p.skipOperator(op) {
		p.unexpected("'" + op + "'")
	}
}

func (p *parser) name() string {
	if p.now().kind != tokenName {
		p.unexpected("a name")
	}
	return p.next().text
}

func (p *parser) tagClose() {
	if p.now().kind != tokenTagClose {
		p.unexpected("'%}'")
	}
	p.pos++
}

func (p *parser) unexpected(want string) {
	failAt(p.now().line, "%s stands where %s is expected", p.now(), want)
}

// nest counts one more level of the tree. The caller decrements depth.
func (p *parser) nest() {
	if p.depth++; p.depth > maxNesting {
		exceedAt(p.now().line, "expressions or blocks are nested more than %d deep", maxNesting)
	}
}

func (p *parser) template() []statement {
	return p.statements("")
}

// statements reads text, expressions and blocks up to one of the tags, whose name is then the
// current token. An empty opening means the whole template.
func (p *parser) statements(opening string, until ...string) []statement {
	p.nest()
	defer func() { p.depth-- }()
	begin := p.now().line
	var body []statement
	for {
		switch t := p.next(); t.kind {
		case tokenData:
			body = append(body, textStatement{own(t.text)})
		case tokenOpen:
			body = append(body, &outputStatement{t.line, p.tuple()})
			if p.now().kind != tokenClose {
				p.unexpected("'}}'")
			}
			p.pos++
		case tokenTagOpen:
			if p.now().kind == tokenName && slices.Contains(until, p.now().text) {
				return body
			}
			body = append(body, p.statement())
			p.tagClose()
		default:
			if opening != "" {
				failAt(begin, "{%% %s %%} has no end: {%% %s %%} is missing", opening, until[len(until)-1])
			}
			return body
		}
	}
}

// body parses the inside of a block after its opening tag, up to the end of its last tag.
func (p *parser) body(opening string) []statement {
	p.skipOperator(":")
	p.tagClose()
	body := p.statements(opening, "end"+opening)
	p.pos++
	return body
}

// apart parses a body that runs like a macro: it cannot leave enclosing loops.
func (p *parser) apart(read func()) {
	loops := p.loops
	p.loops = 0
	read()
	p.loops = loops
}
