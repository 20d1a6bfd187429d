package guide

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// pattern parses a regular expression in the syntax of Go's package regexp (RE2). whole states that
// the text must match as a whole; otherwise a match anywhere in it is enough, as in a JSON schema.
// Anchors may only stand where a match of the whole begins or ends.
func (b *builder) pattern(e encoding, source string, whole bool) *node {
	if source = unicodeEscapes(source); e == quoted {
		source = wideSpaces(source)
	}
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		kind := ErrSyntax
		if strings.Contains(err.Error(), "invalid or unsupported Perl syntax") {
			kind = ErrUnsupported
		}
		return b.fail(kind, "the expression %.80q: %v", source, err)
	}
	n := b.anchored(e, re, !whole, !whole, 0)
	b.spend(1)
	return n
}

// unicodeEscapes rewrites \uXXXX, which ECMA-262 has and RE2 has not.
func unicodeEscapes(source string) string {
	if !strings.Contains(source, `\u`) {
		return source
	}
	var out strings.Builder
	for i := 0; i < len(source); i++ {
		if source[i] != '\\' || i+1 == len(source) {
			out.WriteByte(source[i])
			continue
		}
		if hex := source[i+2:]; source[i+1] == 'u' && len(hex) >= 4 && isHex(hex[:4]) {
			code, _ := strconv.ParseUint(hex[:4], 16, 16)
			i += 5
			if c := rune(code); utf16.IsSurrogate(c) && strings.HasPrefix(hex[4:], `\u`) && len(hex) >= 10 && isHex(hex[6:10]) {
				low, _ := strconv.ParseUint(hex[6:10], 16, 16)
				if pair := utf16.DecodeRune(c, rune(low)); pair != unicode.ReplacementChar {
					code = uint64(pair)
					i += 6
				}
			}
			fmt.Fprintf(&out, `\x{%x}`, code)
			continue
		}
		out.WriteString(source[i : i+2])
		i++
	}
	return out.String()
}

// The members of \s and \S in ECMA-262, which the patterns of JSON schemas follow. RE2 has fewer spaces.
// Each ends with a range, so that a hyphen behind it is one.
const (
	spaces   = `\x20\x{a0}\x{1680}\x{202f}\x{205f}\x{3000}\x{feff}\x09-\x0d\x{2000}-\x{200a}\x{2028}-\x{2029}`
	noSpaces = `\x00-\x08\x0e-\x1f\x21-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}` +
		`\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}`
)

// wideSpaces writes \s and \S as their members.
func wideSpaces(source string) string {
	var out strings.Builder
	class := false
	for i := 0; i < len(source); i++ {
		c := source[i]
		if c != '\\' || i+1 == len(source) {
			if c == '[' {
				class = true
			} else if c == ']' {
				class = false
			}
			out.WriteByte(c)
			continue
		}
		i++
		members := map[byte]string{'s': spaces, 'S': noSpaces}[source[i]]
		switch {
		case members == "":
			out.WriteString(source[i-1 : i+1])
		case class:
			out.WriteString(members)
		default:
			out.WriteString("[" + members + "]")
		}
	}
	return out.String()
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// anchored is an expression before which, with left, any text may come unless it begins with ^, and
// after which, with right, any text may come unless it ends with $.
func (b *builder) anchored(e encoding, re *syntax.Regexp, left, right bool, depth int) *node {
	if depth > maxNested || b.err != nil {
		return b.fail(ErrLimit, "the expression nests deeper than %d levels", maxNested)
	}
	b.spend(1 + len(re.Sub)) // an alternation multiplies what follows it
	switch re.Op {
	case syntax.OpCapture:
		return b.anchored(e, re.Sub[0], left, right, depth+1)
	case syntax.OpAlternate:
		kids := make([]*node, len(re.Sub))
		for i, sub := range re.Sub {
			kids[i] = b.anchored(e, sub, left, right, depth+1)
		}
		return b.alt(kids...)
	case syntax.OpBeginText, syntax.OpEndText:
		return b.anchoredSeq(e, []*syntax.Regexp{re}, left, right, depth)
	case syntax.OpConcat:
		return b.anchoredSeq(e, re.Sub, left, right, depth)
	default:
		return b.surrounded(b.expression(e, re, depth), e, left, right)
	}
}

// surrounded adds any text where it may come.
func (b *builder) surrounded(n *node, e encoding, left, right bool) *node {
	anything := b.empty
	if left || right {
		anything = b.rep(b.anyChar(e), 0, unbounded)
	}
	if left {
		n = b.cat(anything, n)
	}
	if right {
		n = b.cat(n, anything)
	}
	return n
}

func (b *builder) anchoredSeq(e encoding, subs []*syntax.Regexp, left, right bool, depth int) *node {
	for len(subs) > 0 && subs[0].Op == syntax.OpBeginText {
		left, subs = false, subs[1:]
	}
	for len(subs) > 0 && subs[len(subs)-1].Op == syntax.OpEndText {
		right, subs = false, subs[:len(subs)-1]
	}
	if len(subs) == 0 {
		return b.surrounded(b.empty, e, left, right)
	}
	if first := uncaptured(subs[0]); first.Op == syntax.OpAlternate && hasAnchor(first) {
		kids := make([]*node, len(first.Sub))
		for i, sub := range first.Sub {
			kids[i] = b.anchored(e, concat(append([]*syntax.Regexp{sub}, subs[1:]...)), left, right, depth+1)
		}
		return b.alt(kids...)
	}
	if last := uncaptured(subs[len(subs)-1]); last.Op == syntax.OpAlternate && hasAnchor(last) {
		kids := make([]*node, len(last.Sub))
		for i, sub := range last.Sub {
			kids[i] = b.anchored(e, concat(append(slices.Clone(subs[:len(subs)-1]), sub)), left, right, depth+1)
		}
		return b.alt(kids...)
	}
	parts := make([]*node, len(subs))
	for i, sub := range subs {
		parts[i] = b.expression(e, sub, depth+1)
	}
	return b.surrounded(b.seq(parts...), e, left, right)
}

// concat is a sequence of expressions; those in it that are sequences become part of it.
func concat(subs []*syntax.Regexp) *syntax.Regexp {
	out := &syntax.Regexp{Op: syntax.OpConcat}
	for _, sub := range subs {
		if sub = uncaptured(sub); sub.Op == syntax.OpConcat {
			out.Sub = append(out.Sub, sub.Sub...)
		} else {
			out.Sub = append(out.Sub, sub)
		}
	}
	return out
}

func uncaptured(re *syntax.Regexp) *syntax.Regexp {
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	return re
}

func hasAnchor(re *syntax.Regexp) bool {
	return re.Op == syntax.OpBeginText || re.Op == syntax.OpEndText || slices.ContainsFunc(re.Sub, hasAnchor)
}

// expression is an expression without anchors.
func (b *builder) expression(e encoding, re *syntax.Regexp, depth int) *node {
	if depth > maxNested || b.err != nil {
		return b.fail(ErrLimit, "the expression nests deeper than %d levels", maxNested)
	}
	b.spend(1)
	sub := func() *node { return b.expression(e, re.Sub[0], depth+1) }
	switch re.Op {
	case syntax.OpNoMatch:
		return b.none
	case syntax.OpEmptyMatch:
		return b.empty
	case syntax.OpLiteral:
		if slices.ContainsFunc(re.Rune, utf16.IsSurrogate) {
			return b.none // no text has it
		}
		if re.Flags&syntax.FoldCase == 0 {
			return b.text(e, string(re.Rune))
		}
		parts := make([]*node, len(re.Rune))
		for i, c := range re.Rune {
			parts[i] = b.chars(e, foldings(c))
		}
		return b.seq(parts...)
	case syntax.OpCharClass:
		return b.chars(e, re.Rune)
	case syntax.OpAnyChar:
		return b.anyChar(e)
	case syntax.OpAnyCharNotNL:
		if e == quoted { // ECMA-262 has four line ends
			return b.chars(e, negated([]rune{'\n', '\n', '\r', '\r', 0x2028, 0x2029}))
		}
		return b.chars(e, negated([]rune{'\n', '\n'}))
	case syntax.OpCapture:
		return sub()
	case syntax.OpStar:
		return b.count(sub(), 0, unbounded)
	case syntax.OpPlus:
		return b.count(sub(), 1, unbounded)
	case syntax.OpQuest:
		return b.count(sub(), 0, 1)
	case syntax.OpRepeat:
		return b.count(sub(), re.Min, re.Max)
	case syntax.OpConcat, syntax.OpAlternate:
		kids := make([]*node, len(re.Sub))
		for i, s := range re.Sub {
			kids[i] = b.expression(e, s, depth+1)
		}
		if re.Op == syntax.OpConcat {
			return b.seq(kids...)
		}
		return b.either(kids)
	default:
		return b.fail(ErrUnsupported, "the expression has %s inside: anchors may stand at its beginning and end alone", re)
	}
}

// foldings are the characters that equal c but for their case, as ranges.
func foldings(c rune) []rune {
	all := []rune{c}
	for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
		all = append(all, f)
	}
	slices.Sort(all)
	out := make([]rune, 0, 2*len(all))
	for _, f := range all {
		out = append(out, f, f)
	}
	return out
}
