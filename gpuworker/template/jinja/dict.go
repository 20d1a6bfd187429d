package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Dict keeps its entries in the order in which their keys came.
type Dict struct {
	entries []entry
	places  map[any]int // of hashed keys in entries; nil while there are few
}

type entry struct {
	key, value Value
	hash       any
}

// few is up to how many entries looking at each is as good as a map.
const few = 8

// NewDict makes a dictionary of keys, which are strings or made by Own, and values in turn.
func NewDict(pairs ...Value) *Dict {
	d := &Dict{entries: make([]entry, 0, len(pairs)/2)}
	for i := 0; i+1 < len(pairs); i += 2 {
		key := valueOf(pairs[i]).(str)
		d.put(key, key.text, valueOf(pairs[i+1]))
	}
	return d
}

func (d *Dict) place(hash any) int {
	if d.places != nil {
		if i, ok := d.places[hash]; ok {
			return i
		}
		return -1
	}
	for i := range d.entries {
		if d.entries[i].hash == hash {
			return i
		}
	}
	return -1
}

// put adds an entry or replaces its value. Only namespaces and constructors of dictionaries call
// it.
func (d *Dict) put(key Value, hash any, v Value) {
	if i := d.place(hash); i >= 0 {
		d.entries[i].value = v
		return
	}
	d.entries = append(d.entries, entry{key, v, hash})
	if d.places != nil {
		d.places[hash] = len(d.entries) - 1
	} else if len(d.entries) > few {
		d.places = map[any]int{}
		for i, e := range d.entries {
			d.places[e.hash] = i
		}
	}
}

func (d *Dict) find(hash any) (Value, bool) {
	if i := d.place(hash); i >= 0 {
		return d.entries[i].value, true
	}
	return nil, false
}

func (d *Dict) text(key string) (Value, bool) { return d.find(key) }

type (
	noneHash  struct{}
	bigHash   string
	tupleHash string
	otherHash struct{ v Value }
)

// hash is consistent with Python's equality: equal keys have equal hashes. It returns false for
// values that cannot be keys.
func (r *run) hash(v Value) (any, bool) {
	switch v := v.(type) {
	case nil:
		return noneHash{}, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return v, true
	case str:
		return v.text, true
	case markup:
		return v.text, true
	case *big.Int:
		return bigHash(v.String()), true
	case float64:
		if v == math.Trunc(v) && !math.IsInf(v, 0) {
			n, _ := big.NewFloat(v).Int(nil)
			return r.hash(whole(n))
		}
		return v, true
	case *tuple:
		r.enter()
		defer r.leave()
		var all strings.Builder
		for _, item := range v.items {
			r.step(1)
			h, ok := r.hash(item)
			if !ok {
				return nil, false
			}
			text := typeName(h) + ":" + r.hashText(h)
			all.WriteString(strconv.Itoa(len(text)) + ":" + text)
			r.room(all.Len())
		}
		return tupleHash(all.String()), true
	case *List, *Dict:
		return nil, false
	}
	return otherHash{v}, true
}

// hashText separates the hashes of the parts of a tuple.
func (r *run) hashText(h any) string {
	switch h := h.(type) {
	case noneHash:
		return "none"
	case int:
		return strconv.Itoa(h)
	case string:
		return h
	case bigHash:
		return string(h)
	case tupleHash:
		return "(" + string(h)
	case float64:
		return strconv.FormatFloat(h, 'g', -1, 64)
	}
	r.fail("a tuple with %s in it cannot be a key", typeName(h.(otherHash).v))
	return ""
}

// key is the hash of a value that must be a key.
func (r *run) key(v Value) any {
	h, ok := r.hash(v)
	if !ok {
		r.fail("a %s cannot be a key", typeName(v))
	}
	return h
}
