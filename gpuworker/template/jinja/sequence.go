package jinja

import (
	"math"
	"math/big"
	"unicode/utf8"
)

// length is the number of characters, items or entries. Iterators have none.
func length(v Value) (int, bool) {
	switch v := v.(type) {
	case str:
		return utf8.RuneCountInString(v.text), true
	case markup:
		return utf8.RuneCountInString(v.text), true
	case *List:
		return len(v.items), true
	case *tuple:
		return len(v.items), true
	case *Dict:
		return len(v.entries), true
	case *view:
		return len(v.dict.entries), true
	case *interval:
		return v.length, true
	case *undefined:
		return 0, true
	}
	return 0, false
}

// iterate returns a function that yields the items of a value, or false if it is not iterable.
func iterate(v Value) (func() (Value, bool), bool) {
	switch v := v.(type) {
	case str, markup:
		s, _ := textOf(v)
		pos := 0
		return func() (Value, bool) {
			if pos == len(s.text) {
				return nil, false
			}
			_, width := utf8.DecodeRuneInString(s.text[pos:])
			pos += width
			return s.slice(pos-width, pos), true
		}, true
	case *List:
		return each(v.items), true
	case *tuple:
		return each(v.items), true
	case *Dict:
		return each((&view{"keys", v}).items()), true
	case *view:
		return each(v.items()), true
	case *interval:
		i := -1
		return func() (Value, bool) {
			if i++; i >= v.length {
				return nil, false
			}
			return v.at(i), true
		}, true
	case *iterator:
		return v.next, true
	case *undefined:
		return each(nil), true
	}
	return nil, false
}

func each(items []Value) func() (Value, bool) {
	i := -1
	return func() (Value, bool) {
		if i++; i >= len(items) {
			return nil, false
		}
		return items[i], true
	}
}

// iterate is the items of a value that must have some.
func (r *run) iterate(v Value) func() (Value, bool) {
	next, ok := iterate(v)
	if !ok {
		r.fail("'%s' object is not iterable", typeName(v))
	}
	return next
}

// items lists the items of a value; each counts as a step.
func (r *run) items(v Value) []Value {
	switch v := v.(type) {
	case *List:
		return v.items
	case *tuple:
		return v.items
	}
	var out []Value
	next := r.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		r.step(1)
		out = append(out, item)
	}
	return out
}

// item is v[i] for a whole number; false if there is no such item.
func item(v Value, i int) (Value, bool) {
	n, ok := length(v)
	if i < 0 {
		i += n
	}
	if !ok || i < 0 || i >= n {
		return nil, false
	}
	switch v := v.(type) {
	case str:
		return character(v, i), true
	case markup:
		return markup{character(v.str, i)}, true
	case *List:
		return v.items[i], true
	case *tuple:
		return v.items[i], true
	case *interval:
		return v.at(i), true
	}
	return nil, false
}

func character(s str, i int) str {
	pos := skip(s.text, 0, i)
	return s.slice(pos, skip(s.text, pos, 1))
}

// skip is the position that many characters further.
func skip(s string, pos, characters int) int {
	for ; characters > 0; characters-- {
		_, width := utf8.DecodeRuneInString(s[pos:])
		pos += width
	}
	return pos
}

// cut is v[from:to:stride]; bounds that are nil are left out.
func (r *run) cut(v, from, to, stride Value) Value {
	r.defined(v)
	n, ok := length(v)
	switch v.(type) {
	case *Dict, *view:
		ok = false
	}
	if !ok {
		r.fail("'%s' object cannot be sliced", typeName(v))
	}
	step := 1
	if stride != nil {
		if step = r.bound(stride); step == 0 {
			r.fail("slice step cannot be zero")
		}
	}
	low, high := 0, n
	start, end := 0, n
	if step < 0 {
		low, high = -1, n-1
		start, end = n-1, -1
	}
	place := func(bound Value, otherwise int) int {
		if bound == nil {
			return otherwise
		}
		pos := r.bound(bound)
		if pos < 0 {
			pos += n
		}
		return min(max(pos, low), high)
	}
	start, end = place(from, start), place(to, end)
	count := 0
	if step > 0 && start < end {
		count = (end-start-1)/step + 1
	} else if step < 0 && start > end {
		count = (start-end-1)/-step + 1
	}
	return r.pick(v, start, step, count)
}

// bound converts a slice bound. Values beyond int become the largest int.
func (r *run) bound(v Value) int {
	if n, ok := v.(*big.Int); ok {
		return n.Sign() * (math.MaxInt / 2)
	}
	n, ok := integer(v)
	if !ok {
		r.defined(v)
		r.fail("slice indices must be integers or None, not %s", typeName(v))
	}
	return min(max(n, -math.MaxInt/2), math.MaxInt/2)
}

// pick makes the part of a sequence that begins at start.
func (r *run) pick(v Value, start, step, count int) Value {
	switch v := v.(type) {
	case str:
		return r.pickText(v, start, step, count)
	case markup:
		return markup{r.pickText(v.str, start, step, count)}
	case *interval:
		return &interval{v.at(start), v.at(start + count*step), v.stride * step, count}
	case *tuple:
		return newTuple(r.pickItems(v.items, start, step, count)...)
	}
	return &List{r.pickItems(v.(*List).items, start, step, count)}
}

func (r *run) pickItems(items []Value, start, step, count int) []Value {
	if step == 1 {
		return items[start : start+count : start+count]
	}
	r.step(count)
	out := make([]Value, count)
	for i := range out {
		out[i] = items[start+i*step]
	}
	return out
}

func (r *run) pickText(s str, start, step, count int) str {
	ascii := len(s.text) == utf8.RuneCountInString(s.text)
	switch {
	case count == 0:
		return own("")
	case step == 1 && ascii:
		return s.slice(start, start+count)
	case step == 1:
		from := skip(s.text, 0, start)
		return s.slice(from, skip(s.text, from, count))
	}
	places := make([]int, 0, len(s.text)+1) // where each character begins, and the end
	for pos := range s.text {
		places = append(places, pos)
	}
	places = append(places, len(s.text))
	out := r.buffer()
	for i := range count {
		pos := start + i*step
		out.write(s.slice(places[pos], places[pos+1]))
	}
	return out.str()
}

// repeat is a sequence n times over.
func (r *run) repeat(v Value, n int) Value {
	n = max(n, 0)
	switch v := v.(type) {
	case str:
		return r.repeatText(v, n)
	case markup:
		return markup{r.repeatText(v.str, n)}
	case *tuple:
		return newTuple(r.repeatItems(v.items, n)...)
	}
	return &List{r.repeatItems(v.(*List).items, n)}
}

func (r *run) repeatItems(items []Value, n int) []Value {
	if len(items) == 0 || n == 0 {
		return nil
	}
	r.step(min(n, r.limits.Steps+1))
	r.step(min(n*len(items), r.limits.Steps+1))
	out := make([]Value, 0, n*len(items))
	for range n {
		out = append(out, items...)
	}
	return out
}
