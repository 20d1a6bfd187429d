package jinja

import "maps"

// Template is a parsed template. It is immutable and may be used from several goroutines.
type Template struct {
	body   []statement
	limits Limits
}

// Parse reads a template. It fails with an *Error.
func Parse(source string, limits Limits) (t *Template, err error) {
	defer caught(&err)
	p := &parser{tokens: lex(source)}
	return &Template{body: p.template(), limits: limits.withDefaults()}, nil
}

// Text is a rendered text. Own are the ranges of its bytes that the template wrote, ascending and
// with something between them; the rest came from the caller in variables.
type Text struct {
	Text string
	Own  [][2]int
}

// Render returns the text for variables, whose values are nil, bool, int, float64, string, or made
// by Own, NewList, NewDict and NewFunction. A string counts as text from the caller. Render fails
// with an *Error.
func (t *Template) Render(variables map[string]Value) (text Text, err error) {
	defer caught(&err)
	r := &run{limits: t.limits, library: &library{filters, tests, stringMethods}}
	top := &scope{names: maps.Clone(globals)}
	for name, v := range variables {
		top.names[name] = valueOf(v)
	}
	out := r.capture(func() { r.execute(t.body, &scope{outer: top}) })
	return Text{out.text, out.spans()}, nil
}

// scope holds the variables of a template, loop round, macro or block, with those of the enclosing
// ones.
type scope struct {
	names map[string]Value
	outer *scope
}

func (s *scope) inner() *scope { return &scope{outer: s} }

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.names[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.names == nil {
		s.names = map[string]Value{}
	}
	s.names[name] = v
}

// library is the names that a rendering can call. Its members can call others in it.
type library struct {
	filters map[string]*filter
	tests   map[string]*test
	strings map[string]method[str]
}
