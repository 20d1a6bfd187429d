package jinja

// globals are the names that every template has.
var globals = map[string]Value{
	"range":     simple("range", "start stop? step? /", globalRange),
	"namespace": &function{"namespace", globalNamespace},
	"dict":      &function{"dict", globalDict},
	"cycler":    &function{"cycler", globalCycler},
	"joiner":    simple("joiner", "sep?", globalJoiner),
	"lipsum": &function{"lipsum", func(r *run, _ *callArguments) Value {
		r.fail("a chat template must not use lipsum: the same input gives the same prompt")
		return nil
	}},
	"raise_exception": simple("raise_exception", "message", func(r *run, a []Value) Value {
		panic(&Error{Kind: Raised, Line: r.line, Text: r.text(a[0]).text})
	}),
}

// IsGlobal reports whether every template has a name of its own.
func IsGlobal(name string) bool { return globals[name] != nil }

// maxRange is how long Jinja2's sandbox lets a range be.
const maxRange = 100_000

// globalRange returns numbers lazily but counts them all as steps, because the template will
// iterate over them.
func globalRange(r *run, a []Value) Value {
	start, stop, stride := 0, r.whole(a[0], 0), r.whole(a[2], 1)
	if given(a[1]) {
		start, stop = stop, r.whole(a[1], 0)
	}
	if stride == 0 {
		r.fail("range() arg 3 must not be zero")
	}
	span, step := uint64(stop)-uint64(start), uint64(stride)
	if stride < 0 {
		span, step = uint64(start)-uint64(stop), -step
	}
	var n uint64
	if stride > 0 && start < stop || stride < 0 && start > stop {
		n = (span-1)/step + 1
	}
	r.step(int(min(n, uint64(r.limits.Steps)+1)))
	if n > maxRange {
		r.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return &interval{start, stop, stride, int(n)}
}

// globalDict is Python's dict: of a mapping or of pairs, and of named arguments.
func globalDict(r *run, a *callArguments) Value {
	d := &Dict{}
	if len(a.placed) > 1 {
		r.fail("dict expected at most 1 argument, got %d", len(a.placed))
	}
	for _, v := range a.placed {
		if from, ok := v.(*Dict); ok {
			for _, e := range from.entries {
				r.step(1)
				d.put(e.key, e.hash, e.value)
			}
			continue
		}
		for _, pair := range r.items(v) {
			items := r.items(pair)
			if len(items) != 2 {
				r.fail("dict takes pairs, not %d items", len(items))
			}
			d.put(items[0], r.key(items[0]), items[1])
		}
	}
	for i, name := range a.names {
		d.put(str{text: name}, name, a.named[i])
	}
	return d
}

func globalNamespace(r *run, a *callArguments) Value {
	return &namespace{globalDict(r, a).(*Dict)}
}

// object is a value with attributes of its own making.
type object struct{ members map[string]Value }

func globalCycler(r *run, a *callArguments) Value {
	if len(a.placed) == 0 || len(a.names) > 0 {
		r.fail("cycler takes the items to cycle through")
	}
	items, pos := a.placed, 0
	o := &object{members: map[string]Value{"current": items[0]}}
	o.members["next"] = simple("next", "", func(*run, []Value) Value {
		now := items[pos]
		pos = (pos + 1) % len(items)
		o.members["current"] = items[pos]
		return now
	})
	o.members["reset"] = simple("reset", "", func(*run, []Value) Value {
		pos, o.members["current"] = 0, items[0]
		return nil
	})
	return o
}

// globalJoiner returns a function that returns nothing at first and the separator afterwards.
func globalJoiner(r *run, a []Value) Value {
	used := false
	return simple("joiner", "", func(*run, []Value) Value {
		if !used {
			used = true
			return own("")
		}
		return or(a[0], own(", "))
	})
}
