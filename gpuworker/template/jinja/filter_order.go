package jinja

import (
	"slices"
	"strings"
)

// sortBy orders a list by keys, equal ones in their order.
func sortBy[T any](r *run, list []T, key func(T) Value, reverse bool) {
	r.step(len(list))
	keys := make([]Value, len(list))
	places := make([]int, len(list))
	for i, item := range list {
		keys[i], places[i] = key(item), i
	}
	slices.SortStableFunc(places, func(i, j int) int {
		r.step(1)
		if reverse {
			i, j = j, i
		}
		switch {
		case r.compare("<", keys[i], keys[j]):
			return -1
		case r.compare("<", keys[j], keys[i]):
			return 1
		}
		return 0
	})
	sorted := make([]T, len(list))
	for i, place := range places {
		sorted[i] = list[place]
	}
	copy(list, sorted)
}

func (r *run) sort(list []entry, key func(entry) Value, reverse bool) { sortBy(r, list, key, reverse) }

// keyOf returns the sort key of a filter's items: the item or an attribute, with or without letter
// case.
func (r *run) keyOf(attribute Value, sensitive bool) func(Value) Value {
	return func(v Value) Value {
		if given(attribute) && attribute != nil {
			v = r.path(v, attribute, nil)
		}
		if s, ok := plainOf(v); ok && !sensitive {
			return str{text: lowered(s)} // for comparisons alone
		}
		return v
	}
}

func filterSort(r *run, v Value, a []Value) Value {
	key := r.keysOf(or(a[2], nil), flag(a[1]))
	items := slices.Clone(r.items(v))
	sortBy(r, items, key, flag(a[0]))
	return &List{items}
}

// keysOf returns lists of keys: of the attributes with commas between, or of the item itself.
func (r *run) keysOf(attributes Value, sensitive bool) func(Value) Value {
	names := []Value{attributes}
	if s, ok := plainOf(attributes); ok {
		names = nil
		for name := range strings.SplitSeq(s, ",") {
			names = append(names, str{text: name})
		}
	}
	return func(v Value) Value {
		keys := &List{}
		for _, name := range names {
			keys.items = append(keys.items, r.keyOf(name, sensitive)(v))
		}
		return keys
	}
}

func filterDictSort(r *run, v Value, a []Value) Value {
	d, ok := v.(*Dict)
	if !ok {
		r.defined(v)
		r.fail("dictsort takes a dict, not %s", typeName(v))
	}
	pos := 0
	switch by := r.string(or(a[1], own("key")), "dictsort: by"); by {
	case "key":
	case "value":
		pos = 1
	default:
		r.fail(`You can only sort by either "key" or "value"`)
	}
	pairs := (&view{"items", d}).items()
	key := r.keyOf(missing{}, flag(a[0]))
	sortBy(r, pairs, func(pair Value) Value { return key(pair.(*tuple).items[pos]) }, flag(a[2]))
	return &List{pairs}
}

func filterMin(r *run, v Value, a []Value) Value { return best(r, v, a, "<") }
func filterMax(r *run, v Value, a []Value) Value { return best(r, v, a, ">") }

// best is the first item that no other one comes before.
func best(r *run, v Value, a []Value, op string) Value {
	key := r.keyOf(a[1], flag(a[0]))
	var found Value = &undefined{"No aggregated item, sequence was empty."}
	var foundKey Value
	for i, item := range r.items(v) {
		r.step(1)
		if k := key(item); i == 0 || r.compare(op, k, foundKey) {
			found, foundKey = item, k
		}
	}
	return found
}

func filterUnique(r *run, v Value, a []Value) Value {
	return r.generator(func() func() (Value, bool) {
		next, key := r.iterate(v), r.keyOf(a[1], flag(a[0]))
		seen := map[any]bool{}
		return func() (Value, bool) {
			for {
				item, ok := next()
				if !ok {
					return nil, false
				}
				r.step(1)
				if h := r.key(key(item)); !seen[h] {
					seen[h] = true
					return item, true
				}
			}
		}
	})
}

// filterGroupBy makes a list of pairs: an attribute's value, and the items that have it.
func filterGroupBy(r *run, v Value, a []Value) Value {
	sensitive := flag(a[2])
	attribute := func(item Value) Value { return r.path(item, a[0], or(a[1], nil)) }
	plain := r.keyOf(missing{}, sensitive)
	items := slices.Clone(r.items(v))
	sortBy(r, items, func(item Value) Value { return plain(attribute(item)) }, false)
	groups := &List{}
	for begin := 0; begin < len(items); {
		end := begin + 1
		for end < len(items) && r.equal(plain(attribute(items[begin])), plain(attribute(items[end]))) {
			end++
		}
		pair := newTuple(attribute(items[begin]), &List{items[begin:end:end]})
		pair.fields = []string{"grouper", "list"}
		groups.items = append(groups.items, pair)
		begin = end
	}
	return groups
}
