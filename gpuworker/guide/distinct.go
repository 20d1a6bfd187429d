package guide

import "math/bits"

// distinct has the data of a kindDistinct term: arrays whose items are distinct values of a few. Which
// values have come is a part of the state, so that of the 2^n sets of them only those are made that a
// text reaches.
type distinct struct {
	values    []int    // by value: the rule of its text
	allowed   []bitset // by position, the last one for all that follow: the values that may come
	low, high int      // items; high is at most the number of values
}

// maxDistinct bounds the values of the items, and maxMixed where positions differ in theirs.
const (
	maxDistinct = 256
	maxMixed    = 32
)

// bitset is a set of small numbers. Equal sets are equal strings, because with is the only way to make one.
type bitset string

func (s bitset) has(i int) bool { return i>>3 < len(s) && s[i>>3]&(1<<(i&7)) != 0 }

func (s bitset) with(i int) bitset {
	b := make([]byte, max(len(s), i>>3+1))
	copy(b, s)
	b[i>>3] |= 1 << (i & 7)
	return bitset(b)
}

// without returns the size of s without what is in t.
func (s bitset) without(t bitset) (n int) {
	for i := range len(s) {
		b := s[i]
		if i < len(t) {
			b &^= t[i]
		}
		n += bits.OnesCount8(b)
	}
	return n
}

// at returns the values of a position.
func (d *distinct) at(position int) bitset { return d.allowed[min(position, len(d.allowed)-1)] }

// completes reports whether an item, and those that low asks for, may follow n items with the values of
// used.
func (d *distinct) completes(n int, used bitset) bool {
	need := max(d.low-n, 1)
	if n+need > d.high {
		return false
	}
	if n >= len(d.allowed)-1 {
		return d.at(n).without(used) >= need
	}
	// Each position needs a value of its own: a matching, which grows by one position at a time.
	at := map[int]int{} // by value: its position
	var assign func(position int, tried map[int]bool) bool
	assign = func(position int, tried map[int]bool) bool {
		for v := range d.values {
			if tried[v] || used.has(v) || !d.at(position).has(v) {
				continue
			}
			tried[v] = true
			if other, taken := at[v]; !taken || assign(other, tried) {
				at[v] = position
				return true
			}
		}
		return false
	}
	for i := range need {
		if !assign(n+i, map[int]bool{}) {
			return false
		}
	}
	return true
}

// distinct is an item and those that follow it, after n items that had the values of used.
func (r *arena) distinct(d *distinct, n int, used bitset) *node {
	if !d.completes(n, used) {
		return r.none
	}
	k := nodeKey{kind: kindDistinct, distinct: d, low: int32(n), text: string(used)}
	if have := r.known[k]; have != nil {
		return have
	}
	return r.intern(k, &node{distinct: d, low: int32(n), lit: string(used), depth: 1})
}

// stepDistinct is the derivative of a kindDistinct term.
func (r *arena) stepDistinct(n *node, c byte) *node {
	d, used, items := n.distinct, bitset(n.lit), int(n.low)
	var kids []*node
	for v, rule := range d.values {
		if used.has(v) || !d.at(items).has(v) {
			continue
		}
		rest := r.derive(r.call(rule), c)
		if rest.kind == kindNone {
			continue
		}
		more := r.distinct(d, items+1, used.with(v))
		if more.kind != kindNone {
			more = r.seq(r.one(','), r.space(), more)
		}
		if items+1 >= d.low {
			more = r.optional(more)
		}
		kids = append(kids, r.follow(rest, more))
	}
	return r.alt(kids...)
}

// unique builds arrays of distinct items; nil if their values are not listed, or are too many. It then
// has refused uniqueItems.
func (a *arraySchema) unique(at *jsonValue) *node {
	d := &distinct{low: a.low}
	index := map[string]int{}
	var values []*jsonValue
	positions := a.prefix + 1
	if a.high == a.prefix {
		positions = a.prefix
	}
	for i := range positions {
		list, ok := a.finite(a.goal(i))
		if a.err != nil {
			return a.none
		}
		if !ok {
			a.refuse(at, "uniqueItems of items whose values are not listed by enum, const or the types boolean and null")
			return nil
		}
		allowed := bitset("")
		for _, v := range list {
			key := v.key()
			n, known := index[key]
			if !known {
				n = len(values)
				index[key], values = n, append(values, v)
			}
			allowed = allowed.with(n)
		}
		d.allowed = append(d.allowed, allowed)
	}
	if len(values) > maxDistinct || a.prefix > 0 && max(len(values), a.prefix) > maxMixed {
		a.refuse(at, "uniqueItems of items of more than %d values, or %d with prefixItems", maxDistinct, maxMixed)
		return nil
	}
	for _, v := range values {
		a.path = v.path
		rule := a.rule()
		a.bodies[rule] = a.literal(v)
		d.values = append(d.values, rule)
	}
	if d.high = len(values); a.high != unbounded {
		d.high = min(d.high, a.high)
	}
	n := a.none
	if first := a.builder.distinct(d, 0, ""); first.kind != kindNone {
		n = a.enclosed('[', ']', first)
	}
	if a.low == 0 {
		n = a.alt(a.lit("[]"), n)
	}
	return n
}

// finite returns the values of a goal if its schemas list them, or allow the types boolean and null alone.
func (s *schemaBuilder) finite(goal []part) (values []*jsonValue, ok bool) {
	parts := s.expand(goal)
	if s.err != nil {
		return nil, false
	}
	if goals, choice := s.choices(parts); choice {
		for _, g := range goals {
			more, ok := s.finite(g)
			if !ok {
				return nil, false
			}
			values = append(values, more...)
		}
		return values, s.err == nil
	}
	allowed, enums := s.listing(parts)
	if len(enums) > 0 {
		return s.listed(parts, allowed, enums), s.err == nil
	}
	if allowed&typeNull != 0 {
		values = append(values, &jsonValue{path: s.path})
	}
	if allowed&typeBool != 0 {
		values = append(values, &jsonValue{path: s.path, kind: jsonBool, truth: true}, &jsonValue{path: s.path, kind: jsonBool})
	}
	return values, allowed&^(typeNull|typeBool) == 0
}
