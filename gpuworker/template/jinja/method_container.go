package jinja

var dictMethods = map[string]method[*Dict]{
	"get": does("get", "key default? /", func(r *run, d *Dict, a []Value) Value {
		if v, ok := d.find(r.key(a[0])); ok {
			return v
		}
		return or(a[1], nil)
	}),
	"keys":   does("keys", "", func(_ *run, d *Dict, _ []Value) Value { return &view{"keys", d} }),
	"values": does("values", "", func(_ *run, d *Dict, _ []Value) Value { return &view{"values", d} }),
	"items":  does("items", "", func(_ *run, d *Dict, _ []Value) Value { return &view{"items", d} }),
	"copy":   does("copy", "", func(_ *run, d *Dict, _ []Value) Value { return d }),
	"fromkeys": does("fromkeys", "iterable value? /", func(r *run, _ *Dict, a []Value) Value {
		d := &Dict{}
		for _, k := range r.items(a[0]) {
			d.put(k, r.key(k), or(a[1], nil))
		}
		return d
	}),
	"clear": {}, "pop": {}, "popitem": {}, "setdefault": {}, "update": {}, // would change it
}

var listMethods = map[string]method[*List]{
	"count": does("count", "value /", func(r *run, l *List, a []Value) Value { return r.count(l.items, a[0]) }),
	"index": does("index", "value start? stop? /", func(r *run, l *List, a []Value) Value { return r.index(l.items, a) }),
	"copy":  does("copy", "", func(_ *run, l *List, _ []Value) Value { return l }),
	// These would change it.
	"append": {}, "clear": {}, "extend": {}, "insert": {}, "pop": {}, "remove": {}, "reverse": {}, "sort": {},
}

var tupleMethods = map[string]method[*tuple]{
	"count": does("count", "value /", func(r *run, t *tuple, a []Value) Value { return r.count(t.items, a[0]) }),
	"index": does("index", "value start? stop? /", func(r *run, t *tuple, a []Value) Value { return r.index(t.items, a) }),
}

func (r *run) count(items []Value, wanted Value) Value {
	n := 0
	for _, v := range items {
		r.step(1)
		if r.same(v, wanted) {
			n++
		}
	}
	return n
}

func (r *run) index(items []Value, a []Value) Value {
	if given(a[1]) || given(a[2]) {
		r.fail("index of a list with a start is not supported")
	}
	for i, v := range items {
		r.step(1)
		if r.same(v, a[0]) {
			return i
		}
	}
	r.fail("the value is not in the list")
	return nil
}
