package guide

import (
	"encoding/binary"
	"slices"
	"strings"
)

// objectSchema collects the rules of a goal for objects.
type objectSchema struct {
	*schemaBuilder
	parts    []part
	names    []string
	index    map[string]int
	required []bool
	patterns []keyPattern
	naming   []*node // terms that each key must be among
}

// keyPattern is an entry of patternProperties.
type keyPattern struct {
	part int
	at   *jsonValue
	keys *node
}

// object builds the objects of a goal.
func (s *schemaBuilder) object(parts []part) *node {
	of := objectSchema{schemaBuilder: s, parts: parts, index: map[string]int{}}
	of.declared()
	of.keyPatterns()
	if s.err != nil {
		return s.none
	}
	quoted := make([]string, len(of.names))
	for i, name := range of.names {
		quoted[i] = quotedText(name)
		s.spend(1 + len(name))
	}
	o := newObject(quoted, of.required)
	if s.names += len(o.nodes); s.names > maxNames {
		return s.fail(ErrLimit, "the names of its properties have more than %d characters", maxNames)
	}
	o.anyOrder = s.anyOrder && len(of.names) <= maxAnyOrder
	for i, name := range of.names {
		rule := s.valueRule(of.member(name))
		o.values = append(o.values, rule)
		if s.err == nil && !of.named(quoted[i]) {
			o.values[i] = s.valueRule([]part{{at: &jsonValue{kind: jsonBool}}})
		}
		s.spend(4 * len(parts)) // each is looked up in several ways
	}
	of.others(o)
	of.bounds(o)
	if s.err != nil {
		return s.none
	}
	s.objects = append(s.objects, o)
	n := s.enclosed('{', '}', s.beginKeys(o, place{}))
	if o.mayEnd(place{}) {
		n = s.alt(s.lit("{}"), n)
	}
	return n
}

// declared reads the names that the goal declares, in their order, and then those that it requires
// without declaring them.
func (s *objectSchema) declared() {
	add := func(name string) int {
		if strings.ContainsFunc(name, func(c rune) bool { return c <= 0x1f && shortEscapes[c] == 0 }) {
			s.fail(ErrUnsupported, "the name %q has a control character", name)
		}
		i, known := s.index[name]
		if !known {
			i = len(s.names)
			s.index[name] = i
			s.names, s.required = append(s.names, name), append(s.required, false)
		}
		return i
	}
	for _, p := range s.parts {
		named := p.at.fields["properties"]
		if named == nil {
			continue
		}
		if named.kind != jsonObject {
			s.failAt(named.path, ErrSyntax, "properties is an object of schemas")
			return
		}
		for _, name := range named.keys {
			add(name)
		}
	}
	for _, p := range s.parts {
		list := p.at.fields["required"]
		if list == nil {
			continue
		}
		if list.kind != jsonArray {
			s.failAt(list.path, ErrSyntax, "required is a list of names")
			return
		}
		for _, name := range list.items {
			if name.kind != jsonString {
				s.failAt(name.path, ErrSyntax, "required is a list of names")
				return
			}
			s.required[add(name.text)] = true
		}
	}
}

// keyPatterns reads patternProperties and propertyNames.
func (s *objectSchema) keyPatterns() {
	for i, p := range s.parts {
		if p.at.kind != jsonObject {
			continue
		}
		if list := p.at.fields["patternProperties"]; list != nil {
			if list.kind != jsonObject {
				s.failAt(list.path, ErrSyntax, "patternProperties is an object of schemas")
				return
			}
			for _, expression := range list.keys {
				at := list.fields[expression]
				s.path = at.path
				if n := s.leniently(at, func() *node { return s.pattern(quoted, expression, false) }); n != nil {
					s.patterns = append(s.patterns, keyPattern{i, at, n})
				}
			}
		}
		if names := p.at.fields["propertyNames"]; names != nil {
			if n := s.leniently(names, func() *node { return s.nameTerm(names) }); n != nil {
				s.naming = append(s.naming, n)
			}
		}
	}
}

// nameTerm is the names that propertyNames allows.
func (s *objectSchema) nameTerm(at *jsonValue) *node {
	parts := s.expand([]part{{at: at}})
	allowed := typeAny
	var kids []*node
	for _, p := range parts {
		allowed &= s.typesOf(p.at)
		if p.at.kind == jsonObject && (p.at.fields["anyOf"] != nil || p.at.fields["oneOf"] != nil) {
			return s.failAt(at.path, ErrUnsupported, "propertyNames with a choice of schemas")
		}
		for _, v := range constants(p.at) {
			if v.kind == jsonString {
				kids = append(kids, s.text(quoted, v.text))
			}
		}
		if constants(p.at) != nil {
			if len(parts) > 1 {
				return s.failAt(at.path, ErrUnsupported, "propertyNames with an enum beside other schemas")
			}
			kids = append(kids, s.none)
		}
	}
	if allowed&typeString == 0 {
		return s.none
	}
	n := s.stringBody(parts)
	if len(kids) > 0 {
		n = s.determinise(s.and(n, s.alt(kids...)))
	}
	return n
}

// named reports whether propertyNames allows a name, as it is written.
func (s *objectSchema) named(name string) bool {
	for _, n := range s.naming {
		if !s.accepts(n, name) {
			return false
		}
	}
	return true
}

// accepts reports whether a term without rules contains a text.
func (b *builder) accepts(n *node, text string) bool {
	for i := range len(text) {
		b.spend(int(b.costOf(n)))
		if n = b.derive(n, text[i]); n.kind == kindNone || b.err != nil {
			return false
		}
	}
	return n.nullable
}

// member returns the goal of a declared property: from each part its declaration and the patterns that
// it matches, or else the schema of other properties.
func (s *objectSchema) member(name string) []part {
	written := quotedText(name)
	var matched []bool
	for _, p := range s.patterns {
		matched = append(matched, s.accepts(p.keys, written))
	}
	return s.goal(matched, func(v *jsonValue) *jsonValue { return v.fields[name] })
}

// goal returns the schemas of a property that matches some patterns.
func (s *objectSchema) goal(matched []bool, declared func(properties *jsonValue) *jsonValue) []part {
	var goal []part
	for i, p := range s.parts {
		if p.at.kind != jsonObject {
			continue
		}
		before := len(goal)
		if named := p.at.fields["properties"]; named != nil {
			if v := declared(named); v != nil {
				goal = append(goal, part{at: v})
			}
		}
		for j, pattern := range s.patterns {
			if pattern.part == i && matched[j] {
				goal = append(goal, part{at: pattern.at})
			}
		}
		if rest := p.at.fields["additionalProperties"]; rest != nil && len(goal) == before {
			goal = append(goal, part{at: rest})
		}
	}
	return goal
}

// forbids reports whether a goal allows no value at all, as far as its schemas say it themselves.
func forbids(goal []part) bool {
	return slices.ContainsFunc(goal, func(p part) bool { return p.at.kind == jsonBool && !p.at.truth })
}

// others builds the properties that are not declared.
func (s *objectSchema) others(o *object) {
	nothing := func(*jsonValue) *jsonValue { return nil }
	if len(s.patterns) == 0 && len(s.naming) == 0 {
		if goal := s.goal(nil, nothing); !forbids(goal) {
			o.others, o.free = keyText(), true
			o.labels = make([]int32, len(o.others.accept))
			o.otherValues = []int{s.valueRule(goal)}
		}
		return
	}
	// An automaton runs the patterns, the terms of names and the trie of declared names beside each other.
	terms := []*node{s.rep(s.anyChar(quoted), 0, unbounded)}
	terms = append(terms, s.naming...)
	musts := len(terms)
	for _, p := range s.patterns {
		terms = append(terms, p.keys)
	}
	p, seen := newPartition(), map[*node]bool{}
	for _, n := range terms {
		p.add(n, seen)
	}
	for _, name := range o.names {
		for i := range len(name) {
			p.single(name[i])
		}
	}
	type keyState struct {
		name int32
		ids  string
	}
	byIDs := map[string][]*node{}
	intern := func(name int32, terms []*node) keyState {
		ids := make([]byte, 0, 4*len(terms))
		for _, n := range terms {
			ids = binary.LittleEndian.AppendUint32(ids, n.id)
		}
		byIDs[string(ids)] = terms
		return keyState{name, string(ids)}
	}
	reps, rules := p.representatives(), map[string]int32{} // labels by the patterns that match
	d, first := exploreAll(s.builder, p, intern(0, terms), func(at keyState, class int) (keyState, bool) {
		name := int32(-1)
		if at.name >= 0 {
			name = o.nodes[at.name].child(reps[class])
		}
		before := byIDs[at.ids]
		next := make([]*node, len(before))
		for i, n := range before {
			s.spend(int(s.costOf(n)))
			if next[i] = s.derive(n, reps[class]); i < musts && next[i].kind == kindNone {
				return keyState{}, false
			}
		}
		return intern(name, next), true
	}, func(at keyState) bool {
		matched := make([]bool, len(s.patterns))
		key := make([]byte, len(s.patterns))
		whole := at.name < 0 || o.nodes[at.name].name < 0
		for i, n := range byIDs[at.ids] {
			if i < musts {
				whole = whole && n.nullable
			} else if n.nullable {
				matched[i-musts], key[i-musts] = true, 1
			}
		}
		label, known := rules[string(key)]
		if whole && !known {
			label = -1
			if goal := s.goal(matched, nothing); !forbids(goal) {
				label = int32(len(o.otherValues))
				o.otherValues = append(o.otherValues, s.valueRule(goal))
			}
			rules[string(key)] = label
		}
		o.labels = append(o.labels, label)
		return whole && label >= 0
	})
	if first >= 0 {
		o.others = d
	} else {
		o.otherValues = nil
	}
}

// bounds reads minProperties and maxProperties.
func (s *objectSchema) bounds(o *object) {
	required := 0
	for _, r := range o.required {
		if r {
			required++
		}
	}
	for _, p := range s.parts {
		if p.at.kind != jsonObject {
			continue
		}
		if n, ok := s.natural(p.at, "minProperties"); ok && n > o.min {
			if o.others != nil && n > required+1 {
				s.refuse(p.at.fields["minProperties"], "minProperties above the number of required properties and 1, where "+
					"others may come, which may come twice")
				continue
			}
			o.min = n
		}
		if n, ok := s.natural(p.at, "maxProperties"); ok && (o.most == unbounded || n < o.most) {
			o.most = n
		}
	}
	if o.most != unbounded && o.others == nil && o.most >= len(o.names) {
		o.most = unbounded // it follows
	}
	if o.min <= required {
		o.min = 0
	}
}
