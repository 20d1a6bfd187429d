package guide

import "slices"

// object has the data of a kindKeys term: the properties of a JSON object and which keys may name others.
// It never changes once the grammar is built.
//
// Two automata follow a key: the trie of the declared names, and others, which has the keys of
// properties that are not declared. So a state inside a key is one term, however many names there are.
// Declared properties come in their order: after property i come those above it, up to the first that is
// required. Others come when none is required any more. In an object with anyOrder a declared property
// comes once, anywhere, and others come between.
type object struct {
	names    []string // declared, as they are written between quotes
	values   []int    // by declared property: the rule of its value
	required []bool
	dropped  []bool // no value obeys it
	nodes    []nameNode
	need     []int // by property and behind the last: the first required one from here on; len(names): none

	others *dfa // over the bytes between quotes; nil: there are no others
	free   bool // others has every text but the declared names
	// otherValues are the rules of the values of others, by label of a state of others.
	otherValues []int
	labels      []int32 // by state of others

	anyOrder bool

	most int // properties; unbounded
	min  int // distinct properties that an object has at least; 0 or what the declared ones and 1 more give
}

// nameNode is a node of the trie of declared names.
type nameNode struct {
	bytes    []byte
	children []int32
	name     int32   // the property that ends here; -1: none
	below    []int32 // properties at and below, ascending
}

// nameNodeBytes is about the memory of a node that has one child.
const nameNodeBytes = 112

// newObject returns the object of names, whose trie it builds.
func newObject(names []string, required []bool) *object {
	o := &object{names: names, required: required, dropped: make([]bool, len(names)), need: make([]int, len(names)+1), most: unbounded}
	o.nodes = []nameNode{{name: -1}}
	for i, name := range names {
		at := int32(0)
		for _, c := range []byte(name) {
			o.nodes[at].below = append(o.nodes[at].below, int32(i))
			next := o.nodes[at].child(c)
			if next < 0 {
				next = int32(len(o.nodes))
				o.nodes[at].bytes, o.nodes[at].children = append(o.nodes[at].bytes, c), append(o.nodes[at].children, next)
				o.nodes = append(o.nodes, nameNode{name: -1})
			}
			at = next
		}
		o.nodes[at].below = append(o.nodes[at].below, int32(i))
		o.nodes[at].name = int32(i)
	}
	o.need[len(names)] = len(names)
	for i := len(names) - 1; i >= 0; i-- {
		if o.need[i] = o.need[i+1]; required[i] {
			o.need[i] = i
		}
	}
	return o
}

func (n *nameNode) child(c byte) int32 {
	if i := slices.Index(n.bytes, c); i >= 0 {
		return n.children[i]
	}
	return -1
}

// place is where an object's text is: properties below from are over, count have been written (up to
// what the bounds distinguish). With anyOrder, from is 0 and used has the declared properties so far.
type place struct {
	from, count int32
	used        bitset
}

// maxAnyOrder bounds the declared properties of an object with anyOrder.
const maxAnyOrder = 256

// allows reports whether declared property i may come at a place.
func (o *object) allows(p place, i int32) bool {
	if o.anyOrder {
		return !p.used.has(int(i)) && !o.dropped[i] && o.roomBeside(p, int(i))
	}
	return i >= p.from && int(i) <= o.need[p.from] && !o.dropped[i] && o.room(p, int(i)+1)
}

// allowsOthers reports whether a property that is not declared may come.
func (o *object) allowsOthers(p place) bool {
	if o.anyOrder {
		return o.others != nil && o.roomBeside(p, -1)
	}
	return o.others != nil && o.need[p.from] == len(o.names) && o.room(p, len(o.names))
}

// room reports whether one more property fits, and the required ones from a declared one on.
func (o *object) room(p place, from int) bool {
	if o.most == unbounded {
		return true
	}
	all := int(p.count) + 1
	for i := o.need[from]; i < len(o.names); i = o.need[i+1] {
		all++
	}
	return all <= o.most
}

// missing returns the number of required properties that have not come, and of all that may still come.
func (o *object) missing(p place) (required, all int) {
	for i := range o.names {
		if p.used.has(i) || o.dropped[i] {
			continue
		}
		if all++; o.required[i] {
			required++
		}
	}
	return required, all
}

// scans is what anyOrder adds to the cost of a derivative: names that are looked at, in eights.
func (o *object) scans(at int32) uint64 {
	if !o.anyOrder || at < 0 {
		return 0
	}
	n := len(o.nodes[at].below)
	if o.nodes[at].name >= 0 {
		n += len(o.names)
	}
	return uint64(n / 8)
}

// roomBeside is room for an object with anyOrder: i is below 0 for a property that is not declared.
func (o *object) roomBeside(p place, i int) bool {
	if o.most == unbounded {
		return true
	}
	required, _ := o.missing(p)
	if i >= 0 && o.required[i] {
		required--
	}
	return int(p.count)+1+required <= o.most
}

// after returns the place behind a property; i is len(names) for one that is not declared.
func (o *object) after(p place, i int32) place {
	switch declared := int(i) < len(o.names); {
	case o.anyOrder && declared:
		p.used = p.used.with(int(i))
	case o.anyOrder:
		p.from = 0
	case declared:
		p.from = i + 1
	default:
		p.from = i
	}
	if o.most != unbounded {
		p.count++
	} else if p.count < int32(o.min) {
		p.count++
	}
	return p
}

// mayEnd reports whether the object may end at a place.
func (o *object) mayEnd(p place) bool {
	if o.anyOrder {
		required, _ := o.missing(p)
		return required == 0 && int(p.count) >= o.min
	}
	return o.need[p.from] == len(o.names) && int(p.count) >= o.min
}

// anyBelow reports whether a property of the trie below a node may come.
func (o *object) anyBelow(p place, node int32) bool {
	below := o.nodes[node].below
	if o.anyOrder {
		return slices.ContainsFunc(below, func(i int32) bool { return o.allows(p, i) && o.reaches(o.after(p, i)) })
	}
	i, _ := slices.BinarySearch(below, p.from)
	for ; i < len(below) && int(below[i]) <= o.need[p.from]; i++ {
		if o.allows(p, below[i]) && o.reaches(o.after(p, below[i])) {
			return true
		}
	}
	return false
}

// reaches reports whether an object of at least min properties may still come from a place.
func (o *object) reaches(p place) bool {
	if int(p.count) >= o.min || o.others != nil {
		return true
	}
	if o.anyOrder {
		_, left := o.missing(p)
		return int(p.count)+left >= o.min
	}
	left := int32(0)
	for i := int(p.from); i < len(o.names); i++ {
		if !o.dropped[i] {
			left++
		}
	}
	return int(p.count+left) >= o.min
}

// keys is the rest of a key, its value, and the properties that follow, without the closing bracket. node
// is in the trie, or -1; state is of others, or -1.
func (r *arena) keys(o *object, p place, at, state int32) *node {
	if state >= 0 && !o.allowsOthers(p) {
		state = -1
	}
	// Where others may have every text, the trie shows which texts are declared and may not come.
	if at >= 0 && (state < 0 || !o.free) && !o.anyBelow(p, at) {
		at = -1
	}
	if at < 0 && state < 0 {
		return r.none
	}
	k := nodeKey{kind: kindKeys, object: o, low: p.from, high: p.count, a: uint32(at + 1), b: uint32(state + 1), text: string(p.used)}
	if n := r.known[k]; n != nil {
		return n
	}
	return r.intern(k, &node{object: o, low: p.from, high: p.count, lit: string(p.used), at: at, state: state, depth: 1})
}

// stepKeys is the derivative of a kindKeys term.
func (r *arena) stepKeys(n *node, c byte) *node {
	o, p := n.object, place{n.low, n.high, bitset(n.lit)}
	switch named := n.at >= 0 && o.nodes[n.at].name >= 0; {
	case c != '"':
	case named:
		if i := o.nodes[n.at].name; o.allows(p, i) && o.reaches(o.after(p, i)) {
			return r.member(o, o.values[i], o.after(p, i))
		}
		return r.none
	case n.state >= 0 && o.others.accept[n.state]:
		return r.member(o, o.otherValues[o.labels[n.state]], o.after(p, int32(len(o.names))))
	default: // behind a backslash
	}
	at, state := int32(-1), int32(-1)
	if n.at >= 0 {
		at = o.nodes[n.at].child(c)
	}
	if n.state >= 0 {
		state = o.others.step(n.state, c)
	}
	return r.keys(o, p, at, state)
}

// member is what follows a key: colon, value, other properties.
func (r *arena) member(o *object, rule int, p place) *node {
	n := r.cat(r.call(rule), r.moreKeys(o, p))
	return r.seq(r.one(':'), r.optional(r.one(' ')), n)
}

// moreKeys is the properties that follow one, each behind a comma.
func (r *arena) moreKeys(o *object, p place) *node {
	key := r.beginKeys(o, p)
	if key.kind != kindNone {
		key = r.seq(r.one(','), r.space(), key)
	}
	if o.mayEnd(p) {
		return r.optional(key)
	}
	return key
}

// beginKeys is one property and those that follow.
func (r *arena) beginKeys(o *object, p place) *node {
	at, state := int32(0), int32(-1)
	if o.others != nil {
		state = 0
	}
	return r.cat(r.one('"'), r.keys(o, p, at, state))
}

// space is the white space of JSON that is allowed inside brackets and behind a comma.
func (r *arena) space() *node {
	indent := r.cat(r.one('\n'), r.rep(r.anyOf(" \t"), 0, maxIndent))
	return r.optional(r.alt(r.one(' '), indent))
}

// some reports whether an object with a property exists, if the values of some rules are known to exist.
func (o *object) some(known []bool) bool {
	found := slices.ContainsFunc(o.otherValues, func(rule int) bool { return known[rule] })
	for i, rule := range o.values {
		if found = found || known[rule]; o.required[i] && !known[rule] {
			return false
		}
	}
	return found
}

// prune drops the properties whose values do not exist. It returns false if others would be among them
// in part.
func (o *object) prune(productive []bool) bool {
	for i, rule := range o.values {
		o.dropped[i] = !productive[rule]
	}
	lost := 0
	for _, rule := range o.otherValues {
		if !productive[rule] {
			lost++
		}
	}
	if lost > 0 {
		o.others = nil
	}
	return lost == 0 || lost == len(o.otherValues)
}

// add refines a partition by the bytes of keys and of what is between properties.
func (o *object) add(p *partition) {
	for _, text := range append([]string{"\": ,\n\t"}, o.names...) {
		for i := range len(text) {
			p.single(text[i])
		}
	}
	if o.others != nil {
		p.refine(func(c byte) int32 { return int32(o.others.classOf[c]) })
	}
}
