package jinja

import "math/big"

// test is a question about a value.
type test struct {
	params signature
	holds  func(r *run, v Value, a []Value) bool
}

func asks(params string, holds func(r *run, v Value, a []Value) bool) *test {
	return &test{takes(params), holds}
}

// isA makes a test without arguments that cannot fail.
func isA(holds func(v Value) bool) *test {
	return asks("", func(_ *run, v Value, _ []Value) bool { return holds(v) })
}

func compares(op string) *test {
	return asks("other", func(r *run, v Value, a []Value) bool { return r.holds(op, v, a[0]) })
}

var tests = map[string]*test{
	"boolean":     isA(func(v Value) bool { _, ok := v.(bool); return ok }),
	"callable":    isA(testCallable),
	"defined":     isA(func(v Value) bool { _, gone := v.(*undefined); return !gone }),
	"divisibleby": asks("num", func(r *run, v Value, a []Value) bool { return r.equal(r.binary("%", v, a[0]), 0) }),
	"escaped":     isA(func(v Value) bool { _, ok := v.(markup); return ok }),
	"even":        asks("", func(r *run, v Value, _ []Value) bool { return r.equal(r.binary("%", v, 2), 0) }),
	"false":       isA(func(v Value) bool { return v == false }),
	"filter":      asks("", func(r *run, v Value, _ []Value) bool { return r.filters[r.text(v).text] != nil }),
	"float":       isA(func(v Value) bool { _, ok := v.(float64); return ok }),
	"integer":     isA(testInteger),
	"iterable":    isA(func(v Value) bool { _, ok := iterate(v); return ok }),
	"lower":       asks("", func(r *run, v Value, _ []Value) bool { return isCased(r.text(v).text, lowered) }),
	"mapping":     isA(func(v Value) bool { _, ok := v.(*Dict); return ok }),
	"none":        isA(func(v Value) bool { return v == nil }),
	"number":      isA(isNumber),
	"odd":         asks("", func(r *run, v Value, _ []Value) bool { return r.equal(r.binary("%", v, 2), 1) }),
	"sameas":      asks("other", testSameAs),
	"sequence":    isA(testSequence),
	"string":      isA(func(v Value) bool { _, ok := textOf(v); return ok }),
	"test":        asks("", func(r *run, v Value, _ []Value) bool { return r.tests[r.text(v).text] != nil }),
	"true":        isA(func(v Value) bool { return v == true }),
	"undefined":   isA(func(v Value) bool { _, gone := v.(*undefined); return gone }),
	"upper":       asks("", func(r *run, v Value, _ []Value) bool { return isCased(r.text(v).text, uppered) }),

	"in": asks("seq", func(r *run, v Value, a []Value) bool { return r.contains(a[0], v) }),
	"==": compares("=="), "eq": compares("=="), "equalto": compares("=="),
	"!=": compares("!="), "ne": compares("!="),
	">": compares(">"), "gt": compares(">"), "greaterthan": compares(">"), ">=": compares(">="), "ge": compares(">="),
	"<": compares("<"), "lt": compares("<"), "lessthan": compares("<"), "<=": compares("<="), "le": compares("<="),
}

// test asks about a value.
func (r *run) test(t *test, name string, v Value, a *callArguments) bool {
	if t == nil {
		r.fail("the test %q is unknown or not supported", name)
	}
	return t.holds(r, v, r.bind("the test "+name, &t.params, a))
}

func testCallable(v Value) bool {
	switch v.(type) {
	case *function, *macroValue, *loopValue, *undefined:
		return true
	}
	return false
}

func testInteger(v Value) bool {
	switch v.(type) {
	case int, *big.Int:
		return true
	}
	return false
}

// testSequence is true of what has a length and items, which dictionaries do too.
func testSequence(v Value) bool {
	_, sized := length(v)
	_, isView := v.(*view)
	return sized && !isView
}

// testSameAs refuses what depends on how Python keeps equal values.
func testSameAs(r *run, v Value, a []Value) bool {
	_, text := textOf(v)
	_, flag := v.(bool)
	if (text || isNumber(v) && !flag) && typeName(v) == typeName(a[0]) && r.equal(v, a[0]) {
		r.fail("sameas of two equal values of type %s is not supported: use ==", typeName(v))
	}
	return identical(v, a[0])
}

// isCased reports whether a text has cased letters and all of them have this case.
func isCased(s string, change func(string) string) bool {
	return change(s) == s && (uppered(s) != s || lowered(s) != s)
}
