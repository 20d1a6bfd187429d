package jinja

import (
	"fmt"
	"math/big"
	"strings"
)

// attribute is v.name: what Python's attribute of that name is, or else the item of that key.
func (r *run) attribute(v Value, name string) Value {
	r.defined(v)
	if m, ok := r.member(v, name); ok {
		return m
	}
	if d, ok := v.(*Dict); ok {
		if found, ok := d.text(name); ok {
			return found
		}
	}
	return noAttribute(v, name)
}

// subscript is v[key]: the item, or else the attribute of that name.
func (r *run) subscript(v, key Value) Value {
	r.defined(v)
	if d, ok := v.(*Dict); ok {
		if h, ok := r.hash(key); ok {
			if found, ok := d.find(h); ok {
				return found
			}
		}
	} else if i, ok := integer(key); ok {
		if found, ok := item(v, i); ok {
			return found
		}
	}
	if name, ok := plainOf(key); ok {
		if m, ok := r.member(v, name); ok {
			return m
		}
		return noAttribute(v, name)
	}
	what := r.text(key).text
	if _, ok := key.(*undefined); ok {
		what = "Undefined"
	}
	return &undefined{fmt.Sprintf("%s has no element %s", objectName(v), what)}
}

// member is a method or other attribute that a type has in Python.
func (r *run) member(v Value, name string) (Value, bool) {
	if strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__") {
		return unsafe(v, name), true
	}
	switch v := v.(type) {
	case str:
		return member(r.strings, unsupportedString, v, name)
	case markup:
		if safeMethods[name] {
			m := r.strings[name]
			return &function{name, func(r *run, a *callArguments) Value { return markup{m.call(r, v.str, a).(str)} }}, true
		}
		if _, ok := r.strings[name]; ok || contains(unsupportedString, name) {
			r.fail("the method %s of text marked as safe is not supported", name)
		}
	case *Dict:
		return member(dictMethods, nil, v, name)
	case *List:
		return member(listMethods, nil, v, name)
	case *tuple:
		for i, field := range v.fields {
			if field == name {
				return v.items[i], true
			}
		}
		return member(tupleMethods, nil, v, name)
	case *namespace:
		return v.attributes.text(name)
	case *loopValue:
		return v.member(name)
	case *macroValue:
		return v.member(name)
	case *object:
		m, ok := v.members[name]
		return m, ok
	case bool, int, *big.Int, float64:
		if contains(unsupportedNumber, name) {
			r.fail("the attribute %s of '%s' is not supported", name, typeName(v))
		}
	case *interval:
		if contains([]string{"start", "stop", "step", "count", "index"}, name) {
			r.fail("the attribute %s of 'range' is not supported", name)
		}
	case *view:
		if name == "mapping" || name == "isdisjoint" {
			r.fail("the attribute %s of '%s' is not supported", name, typeName(v))
		}
	}
	return nil, false
}

var unsupportedNumber = []string{
	"real", "imag", "numerator", "denominator", "bit_length", "bit_count", "conjugate", "to_bytes", "from_bytes",
	"as_integer_ratio", "is_integer", "hex", "fromhex",
}

// method is a function of a value of type T. A nil call means that it would change the value.
type method[T any] struct {
	call func(r *run, self T, a *callArguments) Value
}

// does makes a method with a signature.
func does[T any](name, params string, call func(r *run, self T, a []Value) Value) method[T] {
	s := takes(params)
	return method[T]{func(r *run, self T, a *callArguments) Value { return call(r, self, r.bind(name, &s, a)) }}
}

func member[T any](methods map[string]method[T], unsupported []string, self T, name string) (Value, bool) {
	m, ok := methods[name]
	switch {
	case ok && m.call == nil:
		return unsafe(self, name), true
	case ok:
		return &function{name, func(r *run, a *callArguments) Value { return m.call(r, self, a) }}, true
	case contains(unsupported, name):
		return &function{name, func(r *run, _ *callArguments) Value {
			r.fail("the method %s of '%s' is not supported", name, typeName(self))
			return nil
		}}, true
	}
	return nil, false
}

func unsafe(v Value, name string) Value {
	return &undefined{fmt.Sprintf("access to attribute '%s' of '%s' object is unsafe.", name, typeName(v))}
}

func noAttribute(v Value, name string) Value {
	return &undefined{fmt.Sprintf("'%s' has no attribute '%s'", objectName(v), name)}
}

// objectName is what Jinja2 calls a value when it misses something in it.
func objectName(v Value) string {
	switch v.(type) {
	case nil:
		return "None"
	case *namespace:
		return "jinja2.utils.Namespace object"
	case *loopValue:
		return "jinja2.runtime.LoopContext object"
	case *macroValue:
		return "jinja2.runtime.Macro object"
	}
	return typeName(v) + " object"
}

// path resolves an attribute path such as "function.name" or "items.0", as filters accept it. An
// undefined step makes the result undefined.
func (r *run) path(v, path, otherwise Value) Value {
	parts := []Value{path}
	if name, ok := plainOf(path); ok {
		parts = nil
		for part := range strings.SplitSeq(name, ".") {
			parts = append(parts, pathKey(part))
		}
	}
	for _, part := range parts {
		v = r.subscript(v, part)
		if _, gone := v.(*undefined); gone && otherwise != nil {
			v = otherwise
		}
	}
	return v
}

func pathKey(part string) Value {
	if part == "" || strings.Trim(part, "0123456789") != "" {
		return str{text: part}
	}
	n, _ := new(big.Int).SetString(part, 10)
	return whole(n)
}
