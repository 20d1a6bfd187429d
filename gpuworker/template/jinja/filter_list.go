package jinja

import "slices"

func filterFirst(r *run, v Value, _ []Value) Value {
	if first, ok := r.iterate(v)(); ok {
		return first
	}
	return &undefined{"No first item, sequence was empty."}
}

func filterLast(r *run, v Value, _ []Value) Value {
	if it, ok := v.(*iterator); ok {
		r.fail("'%s' object is not reversible", it.kind)
	}
	next := r.iterate(v)
	if n, ok := length(v); ok && n > 0 {
		if last, ok := item(v, -1); ok {
			return last
		}
	}
	var last Value = &undefined{"No last item, sequence was empty."}
	for v, ok := next(); ok; v, ok = next() {
		last = v
	}
	return last
}

func filterReverse(r *run, v Value, _ []Value) Value {
	if s, ok := textOf(v); ok {
		n, _ := length(v)
		return like(v, r.pickText(s, n-1, -1, n))
	}
	items := slices.Clone(r.items(v))
	slices.Reverse(items)
	if _, ok := v.(*iterator); ok {
		return &List{items}
	}
	return &iterator{"reverse iterator", each(items)}
}

func filterJoin(r *run, v Value, a []Value) Value {
	separator := r.text(or(a[0], own("")))
	out := r.buffer()
	next := r.iterate(v)
	for n := 0; ; n++ {
		item, ok := next()
		if !ok {
			return out.str()
		}
		r.step(1)
		if given(a[1]) && a[1] != nil {
			item = r.path(item, a[1], nil)
		}
		if n > 0 {
			out.write(separator)
		}
		out.write(r.text(item))
	}
}

// generator begins when its first item is asked for: until then nothing in it can fail.
func (r *run) generator(begin func() func() (Value, bool)) Value {
	var next func() (Value, bool)
	return &iterator{"generator", func() (Value, bool) {
		r.enter()
		if next == nil {
			next = begin()
		}
		item, ok := next()
		r.leave()
		return item, ok
	}}
}

func filterItems(r *run, v Value, _ []Value) Value {
	return r.generator(func() func() (Value, bool) {
		switch v := v.(type) {
		case *undefined:
			return each(nil)
		case *Dict:
			return each((&view{"items", v}).items())
		}
		r.fail("Can only get item pairs from a mapping.")
		return nil
	})
}

// filterBatch makes lists of this many items and fills up the last one.
func filterBatch(r *run, v Value, a []Value) Value {
	return r.generator(func() func() (Value, bool) { return r.batches(r.iterate(v), r.whole(a[0], 0), or(a[1], nil)) })
}

func (r *run) batches(next func() (Value, bool), count int, fill Value) func() (Value, bool) {
	done := false
	return func() (Value, bool) {
		var items []Value
		for !done && (len(items) == 0 || len(items) != count) {
			item, ok := next()
			if !ok {
				done = true
				break
			}
			r.step(1)
			items = append(items, item)
		}
		if len(items) == 0 {
			return nil, false
		}
		for fill != nil && len(items) < count {
			r.step(1)
			items = append(items, fill)
		}
		return &List{items}, true
	}
}

// filterSlice makes this many lists of about equal length.
func filterSlice(r *run, v Value, a []Value) Value {
	return r.generator(func() func() (Value, bool) { return r.slices(r.items(v), r.whole(a[0], 0), or(a[1], nil)) })
}

func (r *run) slices(items []Value, slices int, fill Value) func() (Value, bool) {
	if slices == 0 {
		r.fail("integer division or modulo by zero")
	}
	each, extra := 0, 0
	if slices > 0 {
		each, extra = len(items)/slices, len(items)%slices
	}
	i, offset := -1, 0
	return func() (Value, bool) {
		if i++; i >= slices {
			return nil, false
		}
		r.step(1)
		start := offset + i*each
		if i < extra {
			offset++
		}
		part := items[start : offset+(i+1)*each]
		if fill != nil && i >= extra {
			part = append(part[:len(part):len(part)], fill)
		}
		return &List{part}, true
	}
}

// filterMap applies a filter to each item, or takes an attribute of each. A false input gives
// nothing.
func filterMap(r *run, v Value, a *callArguments) Value {
	return r.generator(func() func() (Value, bool) {
		if !truth(v) {
			return each(nil)
		}
		f := r.mapping(a)
		next := r.iterate(v)
		return func() (Value, bool) {
			item, ok := next()
			if !ok {
				return nil, false
			}
			r.step(1)
			return f(item), true
		}
	})
}

func (r *run) mapping(a *callArguments) func(Value) Value {
	if len(a.placed) == 0 && contains(a.names, "attribute") {
		s := takes("attribute default?")
		args := r.bind("map", &s, a)
		return func(item Value) Value { return r.path(item, args[0], or(args[1], nil)) }
	}
	if len(a.placed) == 0 {
		r.fail("map requires a filter argument")
	}
	name := r.string(a.placed[0], "map: the name of a filter")
	rest := &callArguments{a.placed[1:], a.names, a.named}
	return func(item Value) Value { return r.filter(r.filters[name], name, item, rest) }
}

func filterSelect(r *run, v Value, a *callArguments) Value     { return selected(r, v, a, false, true) }
func filterReject(r *run, v Value, a *callArguments) Value     { return selected(r, v, a, false, false) }
func filterSelectAttr(r *run, v Value, a *callArguments) Value { return selected(r, v, a, true, true) }
func filterRejectAttr(r *run, v Value, a *callArguments) Value { return selected(r, v, a, true, false) }

// selected keeps the items, or those with the attribute, for which a test gives the wanted result.
// A false input gives nothing.
func selected(r *run, v Value, a *callArguments, attribute, want bool) Value {
	return r.generator(func() func() (Value, bool) {
		if !truth(v) {
			return each(nil)
		}
		holds := r.selection(a, attribute)
		next := r.iterate(v)
		return func() (Value, bool) {
			for {
				item, ok := next()
				if !ok {
					return nil, false
				}
				r.step(1)
				if holds(item) == want {
					return item, true
				}
			}
		}
	})
}

func (r *run) selection(a *callArguments, attribute bool) func(Value) bool {
	args := a.placed
	of := func(item Value) Value { return item }
	if attribute {
		if len(args) == 0 {
			r.fail("missing parameter for attribute name")
		}
		path := args[0]
		of, args = func(item Value) Value { return r.path(item, path, nil) }, args[1:]
	}
	if len(args) == 0 {
		return func(item Value) bool { return truth(of(item)) }
	}
	name := r.string(args[0], "the name of a test")
	rest := &callArguments{args[1:], a.names, a.named}
	return func(item Value) bool { return r.test(r.tests[name], name, of(item), rest) }
}
