package tokenizer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"
)

// oracle interprets a regular expression as tokenizers publish it, by backtracking over its syntax
// tree. It exists because no engine in Go takes all of them: class intersections (&&), possessive
// quantifiers and case folding of a group. It is slow and as plain as it can be. A quantifier of an
// expression that matches nothing is refused.
type oracle struct{ root node }

// node matches from i on and calls next with each end, in the order of preference, until next
// returns true.
type node func(s string, i int, next func(end int) bool) bool

// compile parses an expression; it panics on syntax that it does not have.
func compile(expr string) oracle {
	p := &parser{expr: []rune(expr)}
	root := p.alternatives()
	if len(p.expr) > 0 {
		panic("rest of the expression: " + string(p.expr))
	}
	return oracle{root}
}

// find returns the first match at or after i.
func (o oracle) find(s string, i int) (start, end int, ok bool) {
	for start = i; start < len(s); {
		if o.root(s, start, func(e int) bool { end = e; return true }) {
			return start, end, true
		}
		_, n := utf8.DecodeRuneInString(s[start:])
		start += n
	}
	return 0, 0, false
}

type parser struct {
	expr []rune
	fold bool // (?i: of lower-case letters
}

func (p *parser) peek(text string) bool { return strings.HasPrefix(string(p.expr), text) }

func (p *parser) accept(text string) bool {
	if !p.peek(text) {
		return false
	}
	p.expr = p.expr[utf8.RuneCountInString(text):]
	return true
}

func (p *parser) next() rune {
	r := p.expr[0]
	p.expr = p.expr[1:]
	return r
}

func (p *parser) alternatives() node {
	all := []node{p.sequence()}
	for p.accept("|") {
		all = append(all, p.sequence())
	}
	return func(s string, i int, next func(int) bool) bool {
		return slices.ContainsFunc(all, func(n node) bool { return n(s, i, next) })
	}
}

func (p *parser) sequence() node {
	var all []node
	for len(p.expr) > 0 && !p.peek("|") && !p.peek(")") {
		all = append(all, p.quantified())
	}
	var from func(k int, s string, i int, next func(int) bool) bool
	from = func(k int, s string, i int, next func(int) bool) bool {
		if k == len(all) {
			return next(i)
		}
		return all[k](s, i, func(end int) bool { return from(k+1, s, end, next) })
	}
	return func(s string, i int, next func(int) bool) bool { return from(0, s, i, next) }
}

func (p *parser) quantified() node {
	atom := p.atom()
	least, most := 1, 1
	switch {
	case p.accept("?"):
		least = 0
	case p.accept("*"):
		least, most = 0, 1<<30
	case p.accept("+"):
		most = 1 << 30
	case p.accept("{"):
		text := ""
		for !p.accept("}") {
			text += string(p.next())
		}
		first, second, two := strings.Cut(text, ",")
		least, _ = strconv.Atoi(first)
		if most = least; two {
			most, _ = strconv.Atoi(second)
		}
	default:
		return atom
	}
	var repeat func(k int, s string, i int, next func(int) bool) bool
	repeat = func(k int, s string, i int, next func(int) bool) bool {
		if k < most && atom(s, i, func(end int) bool {
			if end == i {
				panic("a quantifier of nothing")
			}
			return repeat(k+1, s, end, next)
		}) {
			return true
		}
		return k >= least && next(i)
	}
	greedy := func(s string, i int, next func(int) bool) bool { return repeat(0, s, i, next) }
	if !p.accept("+") {
		return greedy
	}
	return func(s string, i int, next func(int) bool) bool { // possessive: only the longest end counts
		end := -1
		greedy(s, i, func(e int) bool { end = e; return true })
		return end >= 0 && next(end)
	}
}

func (p *parser) atom() node {
	look := func(want bool) node {
		inner := p.group(p.fold)
		return func(s string, i int, next func(int) bool) bool {
			return inner(s, i, func(int) bool { return true }) == want && next(i)
		}
	}
	switch {
	case p.accept("(?i:"):
		return p.group(true)
	case p.accept("(?:"):
		return p.group(p.fold)
	case p.accept("(?="):
		return look(true)
	case p.accept("(?!"):
		return look(false)
	case p.accept("("):
		return p.group(p.fold)
	case p.accept(`\z`):
		return func(s string, i int, next func(int) bool) bool { return i == len(s) && next(i) }
	case p.accept(`\b`):
		return func(s string, i int, next func(int) bool) bool {
			before, _ := utf8.DecodeLastRuneInString(s[:i])
			after, _ := utf8.DecodeRuneInString(s[i:])
			return (i > 0 && isWord(before)) != (i < len(s) && isWord(after)) && next(i)
		}
	}
	in := p.set()
	return func(s string, i int, next func(int) bool) bool {
		if i == len(s) {
			return false
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		return in(r) && next(i+n)
	}
}

// isWord is \w as Oniguruma defines it.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc)
}

func (p *parser) group(fold bool) node {
	outer := p.fold
	p.fold = fold
	inner := p.alternatives()
	p.fold = outer
	if !p.accept(")") {
		panic("an open group")
	}
	return inner
}

// set parses one character, an escape or a class.
func (p *parser) set() func(rune) bool {
	folded := func(x rune) rune { return unicode.ToLower(unicode.ToUpper(x)) }
	fold := p.fold
	if p.accept("[") {
		in := p.class()
		return func(x rune) bool { return in(x) || fold && in(folded(x)) }
	}
	r := p.next()
	if r == '\\' {
		in, _ := p.escape()
		return in
	}
	return func(x rune) bool { return x == r || fold && folded(x) == r }
}

func (p *parser) class() func(rune) bool {
	negated := p.accept("^")
	var parts []func(rune) bool
	other := func(rune) bool { return true }
	for first := true; first || !p.peek("]"); first = false {
		if p.accept("&&[") {
			other = p.class()
			continue
		}
		lo := p.next()
		if lo == '\\' {
			in, single := p.escape()
			if single < 0 {
				parts = append(parts, in)
				continue
			}
			lo = single
		}
		hi := lo
		if p.peek("-") && len(p.expr) > 1 && p.expr[1] != ']' {
			p.next()
			if hi = p.next(); hi == '\\' {
				_, hi = p.escape()
			}
		}
		parts = append(parts, func(r rune) bool { return r >= lo && r <= hi })
	}
	p.accept("]")
	return func(r rune) bool {
		return (slices.ContainsFunc(parts, func(in func(rune) bool) bool { return in(r) }) && other(r)) != negated
	}
}

// escape parses what follows a backslash. single is the character if it means one, else -1.
func (p *parser) escape() (in func(rune) bool, single rune) {
	table := func(t *unicode.RangeTable) (func(rune) bool, rune) {
		return func(r rune) bool { return unicode.Is(t, r) }, -1
	}
	switch r := p.next(); r {
	case 's':
		return table(unicode.White_Space)
	case 'S':
		return func(r rune) bool { return !unicode.Is(unicode.White_Space, r) }, -1
	case 'd':
		return table(unicode.Nd)
	case 'p':
		p.accept("{")
		name := ""
		for !p.accept("}") {
			name += string(p.next())
		}
		if t, ok := unicode.Categories[name]; ok {
			return table(t)
		}
		t, ok := unicode.Scripts[name]
		if !ok {
			panic("property " + name)
		}
		return table(t)
	case 'r':
		single = '\r'
	case 'n':
		single = '\n'
	case 't':
		single = '\t'
	default:
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			panic(fmt.Sprintf("escape %q", r))
		}
		single = r
	}
	return func(r rune) bool { return r == single }, single
}

func TestOracleMatchesLikeRegexp2(t *testing.T) {
	// The oracle and regexp2 agree on the expressions that both take.
	texts := make([]string, 0, 60)
	for seed := range cap(texts) {
		texts = append(texts, sample(uint64(seed)))
	}
	for name, exprs := range patterns {
		for _, expr := range exprs {
			o, engine := compile(expr), regexp2.MustCompile(expr)
			for _, text := range texts {
				found, err := engine.FindAllStringIndex(text, -1)
				require.NoError(t, err)
				var want, got [][]int
				want = append(want, found...)
				for i := 0; i < len(text); {
					start, end, ok := o.find(text, i)
					if !ok {
						break
					}
					got, i = append(got, []int{start, end}), end
				}
				require.Equal(t, want, got, "%s: %s on %q", name, expr, text)
			}
		}
	}
}

func TestOracleSupportsMoreThanRegexp2(t *testing.T) {
	for expr, tc := range map[string]struct{ text, want string }{
		`[\p{L}&&[^\p{Han}]]+`:              {"世ab世", "ab"},
		`a?+a`:                              {"a", ""},
		`a++b`:                              {"aab", "aab"},
		`(?i:'ll)`:                          {"I'Ll", "'Ll"},
		`'(?i:[sd]|ll)`:                     {"'ſ", "'ſ"},
		`(?i:'s)`:                           {"'ſ", "'ſ"}, // simple case folding
		`\d{1,3}(?=(?:\d{3})*\b)`:           {"1234567", "1"},
		`(?:\r?\n)+(?!\r?\n)`:               {"a\r\n\nb", "\r\n\n"},
		`\s{4}(?!\S)|\s{1,2}(?!\S)`:         {"     x", "    "},
		`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_]`: {"a]", "]"},
	} {
		start, end, _ := compile(expr).find(tc.text, 0)
		require.Equal(t, tc.want, tc.text[start:end], "%s", expr)
	}
}
