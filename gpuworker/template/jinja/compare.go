package jinja

import "strings"

// equal is Python's ==.
func (r *run) equal(a, b Value) bool {
	if s, ok := plainOf(a); ok {
		t, also := plainOf(b)
		return also && s == t
	}
	if isNumber(a) {
		c, ok := 0, false
		if isNumber(b) {
			c, ok = order(a, b)
		}
		return ok && c == 0
	}
	switch a := a.(type) {
	case *List:
		other, ok := b.(*List)
		return ok && r.equalItems(a.items, other.items)
	case *tuple:
		other, ok := b.(*tuple)
		return ok && r.equalItems(a.items, other.items)
	case *Dict:
		other, ok := b.(*Dict)
		return ok && r.equalDicts(a, other)
	case *interval:
		other, ok := b.(*interval)
		if !ok || a.length != other.length || a.length == 0 {
			return ok && a.length == other.length
		}
		return a.start == other.start && (a.length == 1 || a.stride == other.stride)
	case *undefined:
		_, ok := b.(*undefined)
		return ok
	case *view:
		if other, ok := b.(*view); ok && a != other {
			r.fail("comparing two dict_%s is not supported", a.kind)
		}
	}
	return a == b
}

func (r *run) equalItems(a, b []Value) bool {
	if len(a) != len(b) {
		return false
	}
	r.enter()
	defer r.leave()
	for i := range a {
		r.step(1)
		if !r.same(a[i], b[i]) {
			return false
		}
	}
	return true
}

// same is how containers compare items: one is always equal to itself.
func (r *run) same(a, b Value) bool { return identical(a, b) || r.equal(a, b) }

func (r *run) equalDicts(a, b *Dict) bool {
	if len(a.entries) != len(b.entries) {
		return false
	}
	r.enter()
	defer r.leave()
	for _, e := range a.entries {
		r.step(1)
		if v, ok := b.find(e.hash); !ok || !r.same(e.value, v) {
			return false
		}
	}
	return true
}

// identical is Python's "is", as far as it does not depend on how Python keeps numbers and texts.
func identical(a, b Value) bool {
	switch x := a.(type) {
	case str:
		y, ok := b.(str)
		return ok && x.text == y.text
	case markup:
		y, ok := b.(markup)
		return ok && x.text == y.text
	case nil, bool, int, *List, *tuple, *Dict, *undefined, *namespace, *interval, *view, *iterator:
		return a == b
	}
	return false
}

// compare is Python's ordering by op, one of < <= > >=.
func (r *run) compare(op string, a, b Value) bool {
	c, ordered := r.order(op, a, b)
	if !ordered {
		return false
	}
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// order is -1, 0 or 1, and false for what compares as false whatever the operator is.
func (r *run) order(op string, a, b Value) (int, bool) {
	if isNumber(a) && isNumber(b) {
		return order(a, b)
	}
	if s, ok := plainOf(a); ok {
		if t, ok := plainOf(b); ok {
			return strings.Compare(s, t), true // UTF-8 keeps the order of characters
		}
	}
	switch x := a.(type) {
	case *List:
		if y, ok := b.(*List); ok {
			return r.orderItems(op, x.items, y.items)
		}
	case *tuple:
		if y, ok := b.(*tuple); ok {
			return r.orderItems(op, x.items, y.items)
		}
	}
	r.defined(a)
	r.defined(b)
	r.fail("'%s' not supported between instances of '%s' and '%s'", op, typeName(a), typeName(b))
	return 0, false
}

func (r *run) orderItems(op string, a, b []Value) (int, bool) {
	r.enter()
	defer r.leave()
	for i := range min(len(a), len(b)) {
		r.step(1)
		if !r.same(a[i], b[i]) {
			return r.order(op, a[i], b[i])
		}
	}
	return compareInts(len(a), len(b)), true
}

// contains is "item in container".
func (r *run) contains(container, wanted Value) bool {
	if text, ok := plainOf(container); ok {
		part, ok := plainOf(wanted)
		if !ok {
			r.defined(wanted)
			r.fail("'in <string>' requires string as left operand, not %s", typeName(wanted))
		}
		return strings.Contains(text, part)
	}
	switch c := container.(type) {
	case *Dict:
		_, ok := c.find(r.key(wanted))
		return ok
	case *view:
		if c.kind == "keys" {
			_, ok := c.dict.find(r.key(wanted))
			return ok
		}
	}
	next, ok := iterate(container)
	if !ok {
		r.fail("argument of type '%s' is not iterable", typeName(container))
	}
	for v, ok := next(); ok; v, ok = next() {
		r.step(1)
		if r.same(v, wanted) {
			return true
		}
	}
	return false
}
