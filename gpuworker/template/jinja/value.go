package jinja

import "math/big"

// Value is what expressions give: nil, bool, int, *big.Int beyond int, float64, str, markup, or a
// pointer to one of this package's types. No value changes once it is made, but for namespaces and
// for what iterators have left.
type Value = any

// markup is text that the filters safe and escape marked as safe. Joining it with other text by +
// escapes that.
type markup struct{ str }

// Own makes a text that the template may use as its own: special tokens in it are recognised.
func Own(text string) Value { return own(text) }

// valueOf converts a value of this package's caller. A string is text from outside.
func valueOf(v any) Value {
	if text, ok := v.(string); ok {
		return str{text: text}
	}
	return v
}

// List and tuple differ as in Python: by their look, and because tuples can be keys.
type List struct{ items []Value }

type tuple struct {
	items  []Value
	fields []string // names of the items, if they have some
}

func newTuple(items ...Value) *tuple { return &tuple{items: items} }

// NewList makes a list, which keeps the slice.
func NewList(items ...Value) *List {
	for i, v := range items {
		items[i] = valueOf(v)
	}
	return &List{items}
}

// undefined is a missing value. It prints as nothing, is false and empty, and fails with its text
// when used otherwise.
type undefined struct{ text string }

// interval is the result of range.
type interval struct{ start, stop, stride, length int }

func (v *interval) at(i int) int { return v.start + i*v.stride }

// view is the result of a dictionary's keys, values and items.
type view struct {
	kind string // "keys", "values" or "items"
	dict *Dict
}

func (v *view) items() []Value {
	out := make([]Value, len(v.dict.entries))
	for i, e := range v.dict.entries {
		switch v.kind {
		case "keys":
			out[i] = e.key
		case "values":
			out[i] = e.value
		default:
			out[i] = newTuple(e.key, e.value)
		}
	}
	return out
}

// iterator yields each of its items once.
type iterator struct {
	kind string // Python's name for it
	next func() (Value, bool)
}

// namespace is the one value with attributes that templates can set.
type namespace struct{ attributes *Dict }

// typeName is Python's name for a value's type.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int, *big.Int:
		return "int"
	case float64:
		return "float"
	case string, str: // a string is a hash
		return "str"
	case markup:
		return "Markup"
	case *List:
		return "list"
	case *tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case *undefined:
		return "Undefined"
	case *interval:
		return "range"
	case *view:
		return "dict_" + v.kind
	case *iterator:
		return v.kind
	case *namespace:
		return "Namespace"
	case *macroValue:
		return "Macro"
	case *loopValue:
		return "LoopContext"
	}
	return "function"
}

// truth is Python's bool of a value.
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, *undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	}
	if n, ok := length(v); ok {
		return n > 0
	}
	return true
}

// textOf returns a string or the text of a safe one.
func textOf(v Value) (str, bool) {
	switch v := v.(type) {
	case str:
		return v, true
	case markup:
		return v.str, true
	}
	return str{}, false
}

// plainOf is textOf without origins, for what looks at a text and makes none of it.
func plainOf(v Value) (string, bool) {
	s, ok := textOf(v)
	return s.text, ok
}

// like is a text that is marked as safe if v is.
func like(v Value, s str) Value {
	if _, safe := v.(markup); safe {
		return markup{s}
	}
	return s
}
