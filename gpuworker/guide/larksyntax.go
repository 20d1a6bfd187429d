package guide

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// larkOp is the kind of an expression of a grammar in Lark's notation.
type larkOp byte

const (
	larkAlt    larkOp = iota // one of kids
	larkCat                  // kids, one after another
	larkAnd                  // all of kids
	larkNot                  // not kids[0]
	larkRepeat               // kids[0], low to high times
	larkString               // text, with flag i in any case
	larkRegex                // text, with flags
	larkRange                // a character from text to flags
	larkName                 // the rule or terminal text
	larkJSON                 // a value of the JSON schema text
)

// larkExpr is an expression. at is where it begins in the source.
type larkExpr struct {
	op          larkOp
	at          int
	text, flags string
	low, high   int
	kids        []*larkExpr
}

// larkDefinition is a rule or a terminal.
type larkDefinition struct {
	name     string
	at       int
	terminal bool
	body     *larkExpr
	lazy     bool      // the shortest texts alone
	suffix   *larkExpr // what ends a lazy one
	rule     int
	state    larkState // of a terminal
	regular  *node     // a terminal as an automaton; nil: not asked for
}

type larkState byte

const (
	larkOpen larkState = iota
	larkBuilding
	larkBuilt
)

// larkParser reads a grammar in Lark's notation, as far as llguidance reads it:
//
//	start: "answer" ":" (NUMBER | word+)   // a comment
//	word: /[a-z]+/ | "it"i -> pronoun
//	NUMBER: "-"? DIGIT~1..9
//	%import common (DIGIT, WS)
//	%ignore WS
//
// The text is a text of the rule start. Names of terminals are in capitals: they are regular, and nothing is
// ignored inside them. What %ignore names may come behind every terminal of a rule.
type larkParser struct {
	*builder
	in      string
	at      int
	depth   int
	defs    map[string]*larkDefinition
	order   []*larkDefinition
	ignored []*larkExpr
}

// problem records an error at an offset of the source.
func (p *larkParser) problem(kind error, at int, format string, args ...any) {
	p.failAt(p.position(at), kind, format, args...)
}

// position names an offset: line 3, column 7. Columns count characters.
func (p *larkParser) position(at int) string {
	before := p.in[:min(at, len(p.in))]
	line := strings.LastIndexByte(before, '\n') + 1
	return "line " + strconv.Itoa(1+strings.Count(before, "\n")) + ", column " + strconv.Itoa(1+utf8.RuneCountInString(before[line:]))
}

// blank skips spaces and comments, and line ends if lines.
func (p *larkParser) blank(lines bool) {
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			p.at++
		case c == '#' || strings.HasPrefix(p.in[p.at:], "//"):
			for p.at < len(p.in) && p.in[p.at] != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

func (p *larkParser) skip(text string) bool {
	if strings.HasPrefix(p.in[p.at:], text) {
		p.at += len(text)
		return true
	}
	return false
}

func (p *larkParser) expect(text, where string) {
	if p.blank(false); p.err == nil && !p.skip(text) {
		p.problem(ErrSyntax, p.at, "%s %s, and here is %q", text, where, p.peek())
	}
}

func (p *larkParser) peek() string {
	_, n := utf8.DecodeRuneInString(p.in[p.at:])
	return p.in[p.at : p.at+n]
}

// name is letters, digits, _ and -; "" if none is here.
func (p *larkParser) name() string {
	from := p.at
	for p.at < len(p.in) && isNameByte(p.in[p.at]) && (p.in[p.at] != '-' || p.at > from && !strings.HasPrefix(p.in[p.at:], "->")) {
		p.at++
	}
	return p.in[from:p.at]
}

// isTerminal reports whether a name is one of a terminal: in capitals. ok is false if it is neither.
func isTerminal(name string) (terminal, ok bool) {
	letters := strings.TrimLeft(name, "_")
	if letters == "" || letters[0] == '-' || letters[0] >= '0' && letters[0] <= '9' {
		return false, false
	}
	return letters == strings.ToUpper(letters), letters == strings.ToUpper(letters) || letters == strings.ToLower(letters)
}

// read reads statements and definitions.
func (p *larkParser) read() {
	for p.blank(true); p.at < len(p.in) && p.err == nil; p.blank(true) {
		if p.in[p.at] == '%' {
			p.statement()
		} else {
			p.definition()
		}
		if p.blank(false); p.err == nil && p.at < len(p.in) && p.in[p.at] != '\n' && p.in[p.at] != '\r' {
			p.problem(ErrSyntax, p.at, "%q stands where nothing of a rule does", p.peek())
		}
	}
}

// statement is %ignore or %import; the others are refused.
func (p *larkParser) statement() {
	at := p.at
	p.at++
	switch word := p.name(); word {
	case "ignore":
		p.ignored = append(p.ignored, p.alternatives())
	case "import":
		p.imported()
	case "declare", "override", "extend", "llguidance", "lark", "json", "regex":
		p.problem(ErrUnsupported, at, "%%%s here", word)
	default:
		p.problem(ErrSyntax, at, "%%%s is no statement", word)
	}
}

// imported is common.NAME, common.NAME -> OTHER, or common (A, B).
func (p *larkParser) imported() {
	p.blank(false)
	at := p.at
	if library := p.name(); library != "common" {
		p.problem(ErrUnsupported, at, "%%import of %.40q: only terminals of common are built in", library)
		return
	}
	one := func() (name string, at int) {
		p.blank(false)
		at = p.at
		if name = p.name(); larkCommon[name] == "" {
			p.problem(ErrUnsupported, at, "the terminal %.40q is not in common", name)
		}
		return name, at
	}
	if p.skip(".") {
		name, at := one()
		as := name
		if p.blank(false); p.skip("->") {
			p.blank(false)
			as = p.name()
		}
		p.define(&larkDefinition{name: as, at: at, body: &larkExpr{op: larkRegex, at: at, text: larkCommon[name]}})
		return
	}
	p.expect("(", "or a point follows common")
	for p.err == nil {
		name, at := one()
		p.define(&larkDefinition{name: name, at: at, body: &larkExpr{op: larkRegex, at: at, text: larkCommon[name]}})
		if p.blank(false); !p.skip(",") {
			break
		}
	}
	p.expect(")", "ends the names")
}

// larkCommon are the terminals of Lark's library common.
var larkCommon = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[0-9A-Fa-f]`, "INT": `[0-9]+`, "SIGNED_INT": `[-+]?[0-9]+`,
	"DECIMAL": `[0-9]+\.[0-9]*|\.[0-9]+`, "_EXP": `[Ee][-+]?[0-9]+`, "FLOAT": larkFloat, "SIGNED_FLOAT": `[-+]?(?:` + larkFloat + `)`,
	"NUMBER": larkFloat + `|[0-9]+`, "SIGNED_NUMBER": `[-+]?(?:` + larkFloat + `|[0-9]+)`, "ESCAPED_STRING": `"(?:[^"\\]|\\.)*"`,
	"LCASE_LETTER": `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[A-Za-z]`, "WORD": `[A-Za-z]+`, "CNAME": `[A-Za-z_][0-9A-Za-z_]*`,
	"WS_INLINE": `[\t ]+`, "WS": `[\t\n\f\r ]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(?:\r?\n)+`,
	"SH_COMMENT": `#[^\n]*`, "CPP_COMMENT": `//[^\n]*`, "SQL_COMMENT": `--[^\n]*`, "C_COMMENT": `/\*(?:[^*]|\*+[^*/])*\*+/`,
}

const larkFloat = `(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[Ee][-+]?[0-9]+)?|[0-9]+[Ee][-+]?[0-9]+`

// define adds a definition.
func (p *larkParser) define(d *larkDefinition) {
	terminal, ok := isTerminal(d.name)
	d.terminal = terminal
	switch {
	case p.err != nil:
	case !ok:
		p.problem(ErrSyntax, d.at, "%.40q is no name: those of rules are in small letters, those of terminals in capitals", d.name)
	case p.defs[d.name] != nil:
		p.problem(ErrSyntax, d.at, "%.40q is defined twice", d.name)
	case len(p.defs) == maxRules:
		p.problem(ErrLimit, d.at, "it has more than %d rules", maxRules)
	default:
		p.defs[d.name], p.order = d, append(p.order, d)
	}
}

// definition is name: alternatives.
func (p *larkParser) definition() {
	for p.at < len(p.in) && (p.in[p.at] == '!' || p.in[p.at] == '?') { // they shape the tree of a parser
		p.at++
	}
	d := &larkDefinition{at: p.at}
	if d.name = p.name(); d.name == "" {
		p.problem(ErrSyntax, p.at, "a rule begins with its name, and here is %q", p.peek())
		return
	}
	p.define(d)
	if p.blank(false); p.skip("[") {
		p.attributes(d)
	}
	switch p.blank(false); {
	case p.skip("::"):
		p.problem(ErrUnsupported, p.at-2, "rules with parameters")
	case p.skip("{"):
		p.problem(ErrUnsupported, p.at-1, "templates")
	case p.skip("."):
		p.problem(ErrUnsupported, p.at-1, "priorities")
	}
	p.expect(":", "follows the name")
	d.body = p.alternatives()
}

// attributes are capture, lazy and suffix; others are refused.
func (p *larkParser) attributes(d *larkDefinition) {
	for p.err == nil {
		p.blank(false)
		at := p.at
		word := p.name()
		var value *larkExpr
		if p.blank(false); p.skip("=") {
			p.blank(false)
			value = p.item()
		}
		switch {
		case p.err != nil:
		case word == "capture":
		case word == "lazy" && value == nil:
			d.lazy = true
		case word == "suffix" && value != nil:
			d.lazy, d.suffix = true, value
		default:
			p.problem(ErrUnsupported, at, "the attribute %.40q", word)
		}
		if p.blank(false); !p.skip(",") {
			break
		}
	}
	if d.terminal && p.err == nil {
		p.problem(ErrSyntax, d.at, "attributes are of rules, whose names are in small letters")
	}
	p.expect("]", "ends the attributes")
}

// alternatives is sequences with | between.
func (p *larkParser) alternatives() *larkExpr {
	out := &larkExpr{op: larkAlt, at: p.at}
	if p.depth++; p.depth > maxNested {
		p.problem(ErrLimit, p.at, "its groups nest deeper than %d levels", maxNested)
	}
	for p.err == nil {
		first := p.sequence()
		all := &larkExpr{op: larkAnd, at: first.at, kids: []*larkExpr{first}}
		for p.skip("&") {
			all.kids = append(all.kids, p.sequence())
		}
		out.kids = append(out.kids, all)
		if p.skip("->") { // names a node of the tree of a parser
			p.blank(false)
			p.name()
			p.blank(p.depth > 1)
		}
		before := p.at
		if p.blank(true); !p.skip("|") {
			if p.depth == 1 {
				p.at = before
			}
			break
		}
	}
	p.depth--
	return out
}

// sequence is items, each with its repetition.
func (p *larkParser) sequence() *larkExpr {
	p.blank(p.depth > 1)
	out := &larkExpr{op: larkCat, at: p.at}
	for p.err == nil {
		p.blank(p.depth > 1)
		e := p.item()
		if e == nil {
			break
		}
		out.kids = append(out.kids, p.repeated(e))
		p.spend(1)
	}
	return out
}
