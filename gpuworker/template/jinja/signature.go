package jinja

import (
	"math/big"
	"strings"
)

// signature names the parameters of a function: required ones, then optional ones. Those before a
// slash can only be given by position.
type signature struct {
	names    []string
	required int
	placed   int
}

// takes parses a signature such as "old new / count?".
func takes(text string) signature {
	var s signature
	for _, word := range strings.Fields(text) {
		name, optional := strings.CutSuffix(word, "?")
		switch {
		case word == "/":
			s.placed = len(s.names)
			continue
		case !optional:
			s.required = len(s.names) + 1
		}
		s.names = append(s.names, name)
	}
	return s
}

// missing stands for an argument that was left out.
type missing struct{}

func given(v Value) bool { return v != missing{} }

// callArguments are those of one call, evaluated.
type callArguments struct {
	placed []Value
	names  []string
	named  []Value
}

// bind orders arguments as a signature names them.
func (r *run) bind(what string, s *signature, a *callArguments) []Value {
	if len(a.placed) > len(s.names) {
		r.fail("%s takes at most %d arguments, not %d", what, len(s.names), len(a.placed))
	}
	out := make([]Value, len(s.names))
	for i := range out {
		out[i] = missing{}
	}
	copy(out, a.placed)
	for i, name := range a.names {
		pos := -1
		for j, known := range s.names {
			if known == name && j >= s.placed {
				pos = j
			}
		}
		if pos < 0 {
			r.fail("%s takes no argument named %q", what, name)
		}
		if given(out[pos]) {
			r.fail("%s got the argument %q twice", what, name)
		}
		out[pos] = a.named[i]
	}
	for i := range s.required {
		if !given(out[i]) {
			r.fail("%s misses the argument %q", what, s.names[i])
		}
	}
	return out
}

// whole is an argument that is a whole number, or otherwise if it is left out.
func (r *run) whole(v Value, otherwise int) int {
	if !given(v) {
		return otherwise
	}
	if n, ok := v.(*big.Int); ok {
		return r.bound(n)
	}
	n, ok := integer(v)
	if !ok {
		r.defined(v)
		r.fail("'%s' object cannot be interpreted as an integer", typeName(v))
	}
	return n
}

// string is an argument that is text and of which no text is made.
func (r *run) string(v Value, what string) string { return r.str(v, what).text }

// str is an argument that is text.
func (r *run) str(v Value, what string) str {
	s, ok := textOf(v)
	if !ok {
		r.defined(v)
		r.fail("%s must be a string, not %s", what, typeName(v))
	}
	return s
}

// flag is an argument that is true or false, and false if it is left out.
func flag(v Value) bool { return given(v) && truth(v) }

// or is an argument, or otherwise if it is left out.
func or(v, otherwise Value) Value {
	if !given(v) {
		return otherwise
	}
	return v
}
