package guide

import (
	"fmt"
	"slices"
)

// Source is a constraint as the caller states it. Exactly one of its texts is used, by Kind.
type Source struct {
	Kind    Kind
	Text    string   // of all kinds but Choice
	Options []string // of Choice
	Term    *Term    // of Composed
	// Limit bounds a part of the text of Term; nil: no bound.
	Limit *Limit
	// Ignored lists keywords that the caller left out of Term; Grammar.Dropped lists them too.
	Ignored []string
	// Lenient ignores the keywords of a JSON schema, also inside Lark, that no mask honours; Grammar.Dropped lists it.
	Lenient bool
	// AnyOrder lets the declared properties of a JSON schema's objects come in any order, where an object
	// declares at most 256. Otherwise they come in the order of the schema.
	AnyOrder bool
}

// Kind is the language of a Source.
type Kind int

// Kinds of sources.
const (
	Choice     Kind = iota + 1 // the text is one of Options
	Regex                      // the text matches a regular expression as a whole
	JSONSchema                 // the text is a JSON value that a schema accepts
	GBNF                       // the text is derived by a grammar in GBNF
	Composed                   // the text is one of a Term, which may contain other sources
	Lark                       // the text is derived by a grammar in Lark's notation
)

// maxOptions bounds the texts of a choice.
const maxOptions = 4096

// Compile returns the grammar of a source for a vocabulary, or an *Error. It takes a bounded number of
// steps, which depends on the source alone.
func Compile(s Source, v *Vocabulary) (*Grammar, error) {
	b := newBuilder()
	dropped := b.source(s, b.rule())
	if b.err != nil {
		return nil, b.err
	}
	g, err := b.finish(v)
	if err != nil {
		return nil, err
	}
	g.limit = s.Limit
	g.list(dropped)
	return g, nil
}

// list sets the ignored keywords, and counts their bytes.
func (g *Grammar) list(dropped []string) {
	if more := len(dropped) - maxDropped; more > 0 {
		dropped = append(slices.Clone(dropped[:maxDropped]), fmt.Sprintf("and %d more", more))
	}
	g.dropped = dropped
	for _, path := range dropped {
		g.tables += len(path)
	}
	g.measure()
}

// source builds rule root from a source, and returns the paths that it ignores.
func (b *builder) source(s Source, root int) (dropped []string) {
	switch s.Kind {
	case Choice:
		b.bodies[root] = b.choice(s.Options)
	case Regex:
		if b.validText(s.Text); b.err == nil {
			b.bodies[root] = b.pattern(plain, s.Text, true)
		}
	case JSONSchema:
		if b.validText(s.Text); b.err == nil {
			dropped = b.schema(s, root)
		}
	case GBNF:
		if b.validText(s.Text); b.err == nil {
			b.gbnf(s.Text, root)
		}
	case Lark:
		if b.validText(s.Text); b.err == nil {
			dropped = b.lark(s, root)
		}
	case Composed:
		dropped = append(dropped, s.Ignored...)
		b.bodies[root] = b.compose(s.Term, &dropped)
	default:
		b.fail(ErrUnsupported, "it is of kind %d", s.Kind)
	}
	return dropped
}

// choice is one of some texts.
func (b *builder) choice(options []string) *node {
	switch {
	case len(options) == 0:
		return b.fail(ErrSyntax, "it has no options")
	case len(options) > maxOptions:
		return b.fail(ErrLimit, "it has %d options, at most %d are read", len(options), maxOptions)
	}
	all := 0
	for i, o := range options {
		if all += len(o); all > maxSource {
			return b.fail(ErrLimit, "its options have more than %d bytes", maxSource)
		}
		if b.validText(o); o == "" {
			b.fail(ErrSyntax, "option %d is empty", i)
		}
	}
	if b.err != nil {
		return b.none
	}
	return b.literals(options)
}
