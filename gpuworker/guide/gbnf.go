package guide

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// gbnfParser reads a grammar in GBNF, the notation of llama.cpp:
//
//	root  ::= "yes" | "no" [ \t]+ reason   # a comment
//	reason ::= "because " [a-z]{1,20} ( "," reason )?
//
// The text is a text of the rule root. A rule ends with its line, unless brackets are open or the next
// line begins with |.
type gbnfParser struct {
	*builder
	in    string
	at    int
	root  int // the others are numbered after it
	rules map[string]int
	named []string // by rule, from root on
	used  []int    // by rule: where it was first used
	defd  []bool
	depth int
}

// maxRules bounds the rules of a grammar.
const maxRules = 1 << 12

// gbnf builds the rules of a grammar, of which rule root is named root.
func (b *builder) gbnf(source string, root int) {
	p := &gbnfParser{builder: b, in: source, root: root, rules: map[string]int{"root": root}, named: []string{"root"}, used: []int{0}, defd: []bool{false}}
	for p.blank(true); p.at < len(p.in) && p.err == nil; p.blank(true) {
		p.definition()
	}
	for i, ok := range p.defd {
		if !ok && p.err == nil {
			p.at = p.used[i]
			p.problem("the rule %q is not defined", p.named[i])
		}
	}
}

// problem records an error at the present line.
func (p *gbnfParser) problem(format string, args ...any) *node {
	line := 1 + strings.Count(p.in[:min(p.at, len(p.in))], "\n")
	return p.failAt("line "+strconv.Itoa(line), ErrSyntax, format, args...)
}

// blank skips spaces and comments, and line ends if lines.
func (p *gbnfParser) blank(lines bool) {
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			p.at++
		case c == '#':
			for p.at < len(p.in) && p.in[p.at] != '\n' {
				p.at++
			}
		default:
			return
		}
	}
}

func isNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *gbnfParser) name() string {
	from := p.at
	for p.at < len(p.in) && isNameByte(p.in[p.at]) {
		p.at++
	}
	return p.in[from:p.at]
}

// ruleNamed returns the number of a rule, which may not be defined yet.
func (p *gbnfParser) ruleNamed(name string) int {
	i, ok := p.rules[name]
	if !ok {
		if len(p.rules) == maxRules {
			p.fail(ErrLimit, "it has more than %d rules", maxRules)
			return 0
		}
		i = p.rule()
		p.rules[name] = i
		p.named, p.used, p.defd = append(p.named, name), append(p.used, p.at), append(p.defd, false)
	}
	return i
}

// definition is name ::= alternatives.
func (p *gbnfParser) definition() {
	name := p.name()
	if name == "" {
		p.problem("a rule begins with its name, and here is %q", p.peek())
		return
	}
	i := p.ruleNamed(name)
	if p.err == nil && p.defd[i-p.root] {
		p.problem("the rule %q is defined twice", name)
	}
	p.blank(false)
	if !strings.HasPrefix(p.in[p.at:], "::=") {
		p.problem("::= follows the name %q", name)
	}
	if p.err != nil {
		return
	}
	p.at += len("::=")
	p.blank(true)
	p.defd[i-p.root] = true
	p.bodies[i] = p.alternatives()
	if p.at < len(p.in) && p.in[p.at] != '\n' && p.in[p.at] != '\r' {
		p.problem("%q stands where nothing of a rule does", p.peek())
	}
}

func (p *gbnfParser) peek() string {
	_, n := utf8.DecodeRuneInString(p.in[p.at:])
	return p.in[p.at : p.at+n]
}

// alternatives is sequences with | between.
func (p *gbnfParser) alternatives() *node {
	if p.depth++; p.depth > maxNested {
		return p.fail(ErrLimit, "its groups nest deeper than %d levels", maxNested)
	}
	defer func() { p.depth-- }()
	kids := []*node{p.sequence()}
	for p.err == nil {
		before := p.at
		if p.blank(true); p.at == len(p.in) || p.in[p.at] != '|' {
			if p.at = before; p.depth > 1 {
				p.blank(true)
			}
			break
		}
		p.at++
		p.blank(true)
		kids = append(kids, p.sequence())
	}
	return p.alt(kids...)
}

// sequence is items, each with its repetition.
func (p *gbnfParser) sequence() *node {
	var parts []*node
	for p.err == nil {
		p.blank(p.depth > 1)
		n := p.item()
		if n == nil {
			break
		}
		parts = append(parts, p.repeated(n))
		p.spend(1)
	}
	return p.seq(parts...)
}

// item is a literal, a class of characters, a rule or a group; nil: something else.
func (p *gbnfParser) item() *node {
	if p.at == len(p.in) {
		return nil
	}
	switch c := p.in[p.at]; {
	case c == '"':
		p.at++
		var text strings.Builder
		for p.err == nil && !p.skip('"') {
			text.WriteRune(p.character())
		}
		return p.lit(text.String())
	case c == '[':
		p.at++
		return p.class()
	case c == '.':
		p.at++
		return p.anyChar(plain)
	case c == '(':
		p.at++
		p.blank(true)
		n := p.alternatives()
		if !p.skip(')') {
			return p.problem("a group is not closed")
		}
		return n
	case isNameByte(c):
		return p.call(p.ruleNamed(p.name()))
	}
	return nil
}

func (p *gbnfParser) skip(c byte) bool {
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

// escapeDigits are the numbers of hex digits of escapes.
var escapeDigits = map[byte]int{'x': 2, 'u': 4, 'U': 8}

var escapeLetters = map[byte]rune{'n': '\n', 'r': '\r', 't': '\t'}

// character is one of a literal or class, escapes read.
func (p *gbnfParser) character() rune {
	if p.at == len(p.in) {
		p.problem("a literal or class is not closed")
		return 0
	}
	c, n := utf8.DecodeRuneInString(p.in[p.at:])
	if p.at += n; c != '\\' {
		return c
	}
	if p.at == len(p.in) {
		p.problem("the grammar ends with a backslash")
		return 0
	}
	e := p.in[p.at]
	p.at++
	if c, ok := escapeLetters[e]; ok {
		return c
	}
	if digits := escapeDigits[e]; digits > 0 {
		code := p.in[p.at:min(p.at+digits, len(p.in))]
		v, err := strconv.ParseUint(code, 16, 32)
		if err != nil || len(code) < digits || v > utf8.MaxRune || v >= 0xd800 && v < 0xe000 {
			p.problem("%q is no character", `\`+string(e)+code)
		}
		p.at += len(code)
		return rune(v)
	}
	if strings.IndexByte(`"\[]-^`, e) < 0 {
		p.problem("the escape %q is unknown", `\`+string(e))
	}
	return rune(e)
}

// class is the inside of [...] or [^...].
func (p *gbnfParser) class() *node {
	negate := p.skip('^')
	var pairs [][2]rune
	for p.err == nil && !p.skip(']') {
		low := p.character()
		high := low
		if p.at+1 < len(p.in) && p.in[p.at] == '-' && p.in[p.at+1] != ']' {
			p.at++
			high = p.character()
		}
		if low > high {
			p.problem("the range %q to %q is empty", low, high)
		}
		pairs = append(pairs, [2]rune{low, high})
	}
	slices.SortFunc(pairs, func(a, b [2]rune) int { return int(a[0]) - int(b[0]) })
	var ranges []rune
	for _, pair := range pairs {
		if n := len(ranges); n > 0 && pair[0] <= ranges[n-1]+1 {
			ranges[n-1] = max(ranges[n-1], pair[1])
		} else {
			ranges = append(ranges, pair[0], pair[1])
		}
	}
	if negate {
		ranges = negated(ranges)
	}
	return p.chars(plain, ranges)
}

// repeated applies * + ? and {low,high}.
func (p *gbnfParser) repeated(n *node) *node {
	for p.err == nil {
		switch {
		case p.skip('*'):
			n = p.count(n, 0, unbounded)
		case p.skip('+'):
			n = p.count(n, 1, unbounded)
		case p.skip('?'):
			n = p.count(n, 0, 1)
		case p.skip('{'):
			low, high := p.bounds()
			if p.err == nil {
				n = p.count(n, low, high)
			}
		default:
			return n
		}
	}
	return p.none
}

// bounds is the inside of {n}, {low,}, {,high} or {low,high}.
func (p *gbnfParser) bounds() (low, high int) {
	end := strings.IndexByte(p.in[p.at:], '}')
	if end < 0 {
		p.problem("a repetition is not closed")
		return 0, 0
	}
	text := p.in[p.at : p.at+end]
	p.at += end + 1
	first, second, ranged := strings.Cut(text, ",")
	if ranged && strings.TrimSpace(first) == "" && strings.TrimSpace(second) != "" {
		first = "0"
	}
	low, err := natural(first)
	high = low
	if ranged && strings.TrimSpace(second) == "" {
		high = unbounded
	} else if ranged && err == nil {
		high, err = natural(second)
	}
	if err != nil {
		p.problem("the repetition {%.40s}: %v", text, err)
	}
	return low, high
}

func natural(s string) (int, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%.20q is no count", s)
	}
	return int(n), nil
}
