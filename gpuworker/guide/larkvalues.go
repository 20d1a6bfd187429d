package guide

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// item is a value, a group or a negation of one; nil: something else.
func (p *larkParser) item() *larkExpr {
	at := p.at
	if at == len(p.in) {
		return nil
	}
	group := func(end string) *larkExpr {
		p.at++
		e := p.alternatives()
		if p.err == nil && !p.skip(end) {
			p.problem(ErrSyntax, at, "a group is not closed by %s", end)
		}
		return e
	}
	switch c := p.in[at]; {
	case c == '(':
		return group(")")
	case c == '[':
		return &larkExpr{op: larkRepeat, at: at, high: 1, kids: []*larkExpr{group("]")}}
	case c == '~':
		p.at++
		p.blank(false)
		if p.at < len(p.in) && p.in[p.at] == '~' {
			p.problem(ErrSyntax, p.at, "~ of ~")
			return nil
		}
		if e := p.item(); e != nil {
			return &larkExpr{op: larkNot, at: at, kids: []*larkExpr{e}}
		}
		p.problem(ErrSyntax, at, "~ stands before nothing")
	case c == '"':
		return p.str()
	case c == '/':
		return p.regex()
	case c == '%':
		return p.inline()
	case c == '<':
		name, _, _ := strings.Cut(p.in[at:min(len(p.in), at+80)], ">")
		p.problem(ErrUnsupported, at, "the special token %s>: a grammar describes text", name)
	case c == '@':
		p.problem(ErrUnsupported, at, "a reference to another grammar")
	case isNameByte(c):
		if name := p.name(); name != "" {
			return &larkExpr{op: larkName, at: at, text: name}
		}
	}
	return nil
}

// inline is %json with a schema; the others are refused.
func (p *larkParser) inline() *larkExpr {
	at := p.at
	p.at++
	if word := p.name(); word != "json" {
		p.problem(ErrUnsupported, at, "%%%.40s in a rule", word)
		return nil
	}
	p.blank(false)
	var raw json.RawMessage
	d := json.NewDecoder(strings.NewReader(p.in[p.at:]))
	if err := d.Decode(&raw); err != nil {
		p.problem(ErrSyntax, at, "%%json is not followed by a JSON schema: %v", err)
		return nil
	}
	p.at += int(d.InputOffset())
	return &larkExpr{op: larkJSON, at: at, text: string(raw)}
}

// str is a string, or a range between two.
func (p *larkParser) str() *larkExpr {
	e := &larkExpr{op: larkString, at: p.at}
	e.text = p.quotedString()
	before := p.at
	if p.blank(false); !p.skip("..") {
		if p.at = before; p.skip("i") {
			e.flags = "i"
		}
		return e
	}
	p.blank(false)
	if p.at == len(p.in) || p.in[p.at] != '"' {
		p.problem(ErrSyntax, p.at, "a string follows ..")
		return e
	}
	e.op, e.flags = larkRange, p.quotedString()
	if utf8.RuneCountInString(e.text) != 1 || utf8.RuneCountInString(e.flags) != 1 || e.text > e.flags {
		p.problem(ErrSyntax, e.at, "the range %.40q to %.40q is not of two characters in order", e.text, e.flags)
	}
	return e
}

// quotedString reads a string with the escapes of JSON and \xHH.
func (p *larkParser) quotedString() string {
	at := p.at
	for p.at++; p.at < len(p.in) && p.in[p.at] != '"' && p.in[p.at] != '\n'; p.at++ {
		if p.in[p.at] == '\\' {
			p.at++
		}
	}
	if p.at = min(p.at, len(p.in)); p.at == len(p.in) || p.in[p.at] != '"' {
		p.problem(ErrSyntax, at, "a string is not closed on its line")
		return ""
	}
	p.at++
	var text string
	written := p.in[at:p.at]
	if strings.Contains(written, `\x`) {
		parts := strings.Split(written, `\\`) // so that an escaped backslash before an x is none
		for i := range parts {
			parts[i] = strings.ReplaceAll(parts[i], `\x`, `\u00`)
		}
		written = strings.Join(parts, `\\`)
	}
	if err := json.Unmarshal([]byte(written), &text); err != nil {
		p.problem(ErrSyntax, at, "the string %.80s has an unknown escape", p.in[at:p.at])
	}
	return text
}

// regex is an expression between slashes, and its flags.
func (p *larkParser) regex() *larkExpr {
	e := &larkExpr{op: larkRegex, at: p.at}
	for p.at++; p.at < len(p.in) && p.in[p.at] != '/' && p.in[p.at] != '\n'; p.at++ {
		if p.in[p.at] == '\\' {
			p.at++
		}
	}
	if p.at = min(p.at, len(p.in)); p.at == len(p.in) || p.in[p.at] != '/' {
		p.problem(ErrSyntax, e.at, "an expression is not closed on its line")
		return e
	}
	e.text = p.in[e.at+1 : p.at]
	p.at++
	for p.at < len(p.in) && strings.IndexByte("imslux", p.in[p.at]) >= 0 {
		switch c := p.in[p.at]; c {
		case 'i', 's', 'm':
			e.flags += string(c)
		case 'l', 'x':
			p.problem(ErrUnsupported, p.at, "the flag %c of an expression", c)
		}
		p.at++
	}
	return e
}

// repeated applies *, +, ?, ~n, ~n..m and {n,m} to an item.
func (p *larkParser) repeated(e *larkExpr) *larkExpr {
	out := &larkExpr{op: larkRepeat, at: e.at, kids: []*larkExpr{e}, high: unbounded}
	before := p.at
	switch p.blank(false); {
	case p.skip("*"):
	case p.skip("+"):
		out.low = 1
	case p.skip("?"):
		out.high = 1
	case p.skip("{"):
		end := strings.IndexByte(p.in[p.at:], '}')
		if end < 0 {
			p.problem(ErrSyntax, p.at, "a repetition is not closed")
			return e
		}
		p.bounds(out, p.in[p.at:p.at+end], ",")
		p.at += end + 1
	case p.skip("~"):
		from := p.at
		for p.at < len(p.in) && strings.IndexByte("0123456789. ", p.in[p.at]) >= 0 {
			p.at++
		}
		text := p.in[from:p.at]
		if strings.Trim(text, ". ") == "" { // a negation
			p.at = before
			return e
		}
		p.bounds(out, text, "..")
	default:
		p.at = before
		return e
	}
	return out
}

// bounds reads the counts of a repetition.
func (p *larkParser) bounds(e *larkExpr, text, between string) {
	first, second, ranged := strings.Cut(text, between)
	first, second = strings.TrimSpace(first), strings.TrimSpace(second)
	if ranged && first == "" && second != "" && between == "," {
		first = "0"
	}
	var err error
	e.low, err = natural(first)
	e.high = e.low
	if ranged && second == "" && between == "," {
		e.high = unbounded
	} else if ranged && err == nil {
		e.high, err = natural(second)
	}
	if err != nil {
		p.problem(ErrSyntax, e.at, "the repetition %.40q: %v", text, err)
	}
}
