package guide

import (
	"fmt"
	"strings"
)

// Control is the byte before the name of a control token in the texts of a composed constraint. It occurs in
// no UTF-8, so a token with such a text is allowed where a Literal names it and nowhere else.
const Control = "\xff"

// Term is a part of a constraint of kind Composed: a set of texts.
type Term struct {
	Op Op
	// Text is the bytes of a Literal, in which Control begins the name of a control token.
	Text string
	// Without lists texts that a Free text does not contain, and NotFirst those that it does not begin with, white space
	// before them aside.
	Without, NotFirst []string
	// Of are the terms that Sequence, Union and Repeat are made of; Repeat has one.
	Of []Term
	// Low and High bound a Repeat; High below 0 is no bound.
	Low, High int
	// Source is a Nested constraint. Terms that share one share its rules. Path precedes the paths of its errors and of the keywords that it ignores.
	Source *Source
	Path   string
}

// Op is the kind of a Term. The zero value is the empty text.
type Op int

// Kinds of terms.
const (
	Literal  Op = iota // Text
	Free               // any UTF-8 text without Without
	Sequence           // Of, one after another
	Union              // one of Of
	Repeat             // Of[0], Low to High times
	Nested             // Source
)

// compose returns a composed term, and adds to dropped what nested sources ignore.
func (b *builder) compose(t *Term, dropped *[]string) *node {
	if b.spend(1); b.err != nil {
		return b.none
	}
	switch t.Op {
	case Literal:
		return b.lit(t.Text)
	case Free:
		return b.freeText(t.Without, t.NotFirst)
	case Repeat:
		return b.count(b.compose(&t.Of[0], dropped), t.Low, max(t.High, unbounded))
	case Nested:
		if n := b.nested[t.Source]; n != nil {
			return n
		}
		rule := b.rule()
		for _, path := range b.source(*t.Source, rule) {
			*dropped = append(*dropped, nestedPath(t.Path, path))
		}
		if b.err != nil {
			b.err.Path = nestedPath(t.Path, b.err.Path)
			return b.none
		}
		b.path = ""
		b.nested[t.Source] = b.call(rule)
		return b.nested[t.Source]
	default:
	}
	kids := make([]*node, len(t.Of))
	for i := range t.Of {
		kids[i] = b.compose(&t.Of[i], dropped)
	}
	if t.Op == Union {
		return b.alt(kids...)
	}
	return b.seq(kids...)
}

// nestedPath is the path of a nested source's place.
func nestedPath(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	if pointer, ok := strings.CutPrefix(inner, "#"); ok {
		return short(outer+pointer, maxPath)
	}
	return short(outer+", "+inner, maxPath)
}

// freeText is any UTF-8 text that contains none of some texts, and begins with none of others.
func (b *builder) freeText(without, notFirst []string) *node {
	key := fmt.Sprintf("%q %q", without, notFirst)
	if n := b.freeTexts[key]; n != nil {
		return n
	}
	all := b.rep(b.chars(plain, []rune{0, 0x10ffff}), 0, unbounded)
	if len(without)+len(notFirst) > 0 {
		text, space := b.rep(b.bytesOf(0, 0xff), 0, unbounded), b.rep(b.anyOf(" \t\r\n"), 0, unbounded)
		for _, w := range without {
			all = b.and(all, b.not(b.seq(text, b.lit(w), text)))
		}
		for _, w := range notFirst {
			all = b.and(all, b.not(b.seq(space, b.lit(w), text)))
		}
		all = b.determinise(all)
	}
	b.freeTexts[key] = all
	return all
}
