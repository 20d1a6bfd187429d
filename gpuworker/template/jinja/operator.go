package jinja

import "strings"

type (
	orExpression   struct{ a, b expression }
	andExpression  struct{ a, b expression }
	notExpression  struct{ a expression }
	signExpression struct {
		line  int
		minus bool
		a     expression
	}
	binaryExpression struct {
		line int
		op   string
		a, b expression
	}
	concatExpression struct {
		line  int
		parts []expression
	}
	// compareExpression is a chain. Each operand is evaluated once, and none after the first false
	// comparison.
	compareExpression struct {
		line  int
		first expression
		rest  []operand
	}
	operand struct {
		op string
		e  expression
	}
)

func (e *orExpression) eval(r *run, s *scope) Value {
	if a := r.eval(e.a, s); truth(a) {
		return a
	}
	return r.eval(e.b, s)
}

func (e *andExpression) eval(r *run, s *scope) Value {
	if a := r.eval(e.a, s); !truth(a) {
		return a
	}
	return r.eval(e.b, s)
}

func (e *notExpression) eval(r *run, s *scope) Value { return !truth(r.eval(e.a, s)) }

func (e *signExpression) eval(r *run, s *scope) Value {
	v := r.eval(e.a, s)
	r.line = e.line
	return r.sign(v, e.minus)
}

func (e *concatExpression) eval(r *run, s *scope) Value {
	parts := r.evalAll(e.parts, s)
	r.line = e.line
	texts := make([]str, len(parts))
	for i, v := range parts {
		texts[i] = r.text(v)
	}
	return r.join(texts...)
}

// compareExpression is a chain: each operand is evaluated once, and none after the first comparison
// that is false.
func (e *compareExpression) eval(r *run, s *scope) Value {
	left := r.eval(e.first, s)
	for _, o := range e.rest {
		right := r.eval(o.e, s)
		r.line = e.line
		if !r.holds(o.op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (r *run) holds(op string, a, b Value) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	return r.compare(op, a, b)
}

func (e *binaryExpression) eval(r *run, s *scope) Value {
	a, b := r.eval(e.a, s), r.eval(e.b, s)
	r.line = e.line
	if x, ok := a.(str); ok && e.op == "+" {
		if y, ok := b.(str); ok {
			return r.join(x, y)
		}
	}
	return r.binary(e.op, a, b)
}

// binary evaluates an arithmetic operator on any two values.
func (r *run) binary(op string, a, b Value) Value {
	if isNumber(a) && isNumber(b) {
		return r.arithmetic(op, a, b)
	}
	r.defined(a)
	if _, text := textOf(a); op != "%" || !text {
		r.defined(b)
	}
	var v Value
	switch op {
	case "+":
		v = r.add(a, b)
	case "*":
		if n, ok := bigInteger(b); ok && repeats(a) {
			v = r.repeat(a, r.bound(whole(n)))
		} else if n, ok := bigInteger(a); ok && repeats(b) {
			v = r.repeat(b, r.bound(whole(n)))
		}
	case "%":
		if s, ok := textOf(a); ok {
			if _, safe := a.(markup); safe {
				r.fail("%% of text marked as safe is not supported")
			}
			v = r.percent(s, b)
		}
	}
	if v == nil {
		r.fail("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	}
	return v
}

func repeats(v Value) bool {
	switch v.(type) {
	case str, markup, *List, *tuple:
		return true
	}
	return false
}

// add joins two values of one kind, or returns nil.
func (r *run) add(a, b Value) Value {
	switch x := a.(type) {
	case *List:
		if y, ok := b.(*List); ok {
			return &List{r.addItems(x.items, y.items)}
		}
	case *tuple:
		if y, ok := b.(*tuple); ok {
			return newTuple(r.addItems(x.items, y.items)...)
		}
	case str, markup:
		s, _ := textOf(a)
		t, ok := textOf(b)
		if !ok {
			r.fail(`can only concatenate str (not "%s") to str`, typeName(b))
		}
		_, safeA := a.(markup)
		_, safeB := b.(markup)
		if !safeA && !safeB {
			return r.join(s, t)
		}
		if !safeA {
			s = r.mapRuns(s, escaped.Replace)
		}
		if !safeB {
			t = r.mapRuns(t, escaped.Replace)
		}
		return markup{r.join(s, t)}
	}
	return nil
}

func (r *run) addItems(a, b []Value) []Value {
	r.step(len(a) + len(b))
	return append(append(make([]Value, 0, len(a)+len(b)), a...), b...)
}

// escaped writes what has a meaning in HTML as its names.
var escaped = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")
