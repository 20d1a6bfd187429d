package guide

import (
	"maps"
	"slices"
)

// notHonoured are the keywords that say something about the value and decide no mask. Keywords that
// no code of this package names say nothing about it, as the standard has it.
var notHonoured = map[string]bool{
	"unevaluatedProperties": true,
	"unevaluatedItems":      true, "$dynamicRef": true, "$recursiveRef": true,
}

var (
	arrayKeywords  = []string{"prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"}
	objectKeywords = []string{
		"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties",
	}
)

// keywords refuses the keywords of a schema that are not honoured.
func (s *schemaBuilder) keywords(v *jsonValue) {
	for _, k := range v.keys {
		field := v.fields[k]
		switch {
		case notHonoured[k] && !harmless(field):
			s.refuse(field, "the keyword %s", k)
		case k == "$id" && v != s.root:
			s.refuse(field, "$id below the root, which changes what a $ref names")
		case k == "items" && field.kind == jsonArray:
			s.failAt(field.path, ErrUnsupported, "items as a list: draft 2020-12 has prefixItems for it")
		case (k == "exclusiveMinimum" || k == "exclusiveMaximum") && field.kind == jsonBool:
			s.failAt(field.path, ErrUnsupported, "%s as a truth value: since draft 6 it is the bound itself", k)
		}
	}
}

// harmless reports whether a schema allows everything: true, or one without keywords.
func harmless(v *jsonValue) bool {
	return v.kind == jsonBool && v.truth || v.kind == jsonObject && len(v.keys) == 0
}

// checkDistinct returns for each branch of a oneOf the negations of those that may accept a value of it
// too. It refuses the oneOf if one of these has no negation that can be built. rest is the remaining goal.
func (s *schemaBuilder) checkDistinct(list *jsonValue, branches []*jsonValue, rest []part) [][]part {
	if s.err != nil {
		return nil
	}
	all, but := make([]outline, len(branches)), make([][]part, len(branches))
	for i, branch := range branches {
		all[i] = s.outline(append(slices.Clip(rest), part{at: branch}))
	}
	for i := range all {
		for j := range i {
			if s.spend(1); s.err != nil || s.distinct(&all[i], &all[j]) {
				continue
			}
			notI, notJ := s.negation(branches[i]), s.negation(branches[j])
			if notI == nil || notJ == nil {
				s.refuse(list, "oneOf whose branches %d and %d may accept the same value, which no built schema excludes: give "+
					"them different types, or a required property with different constants, or use anyOf", j, i)
				return nil
			}
			but[i], but[j] = append(but[i], part{at: notJ}), append(but[j], part{at: notI})
		}
	}
	return but
}

// outline is a summary of a goal's values.
type outline struct {
	types    types
	values   []*jsonValue            // the only ones; nil: more
	tags     map[string][]*jsonValue // required properties that have one of some values
	required map[string]bool
	closed   bool // no property that is not declared
	declared map[string]bool
	low      bound
	high     bound
}

func (s *schemaBuilder) outline(goal []part) outline {
	out := outline{types: typeAny, tags: map[string][]*jsonValue{}, required: map[string]bool{}, declared: map[string]bool{}}
	parts := s.expand(goal)
	for _, p := range parts {
		out.types &= s.typesOf(p.at)
		if p.at.kind != jsonObject {
			continue
		}
		if values := constants(p.at); values != nil {
			out.values = values
		}
		if list := p.at.fields["required"]; list != nil {
			for _, name := range list.items {
				out.required[name.text] = true
			}
		}
		if others := p.at.fields["additionalProperties"]; others != nil && others.kind == jsonBool && !others.truth &&
			p.at.fields["patternProperties"] == nil {
			out.closed = true
			out.declared = map[string]bool{}
			if named := p.at.fields["properties"]; named != nil {
				for k := range named.fields {
					out.declared[k] = true
				}
			}
		}
	}
	for _, p := range parts {
		if named := p.at.fields["properties"]; named != nil {
			for _, name := range named.keys {
				if values := constants(named.fields[name]); values != nil && out.required[name] {
					out.tags[name] = values
				}
			}
		}
	}
	if out.types&^typeNumber == 0 {
		n := s.numericRange(parts)
		out.low, out.high = n.low, n.high
	}
	return out
}

// constants are the values of enum or const; nil if there is neither.
func constants(v *jsonValue) []*jsonValue {
	if v.kind != jsonObject {
		return nil
	}
	if c := v.fields["const"]; c != nil {
		return []*jsonValue{c}
	}
	if e := v.fields["enum"]; e != nil && e.kind == jsonArray {
		return e.items
	}
	return nil
}

// distinct reports whether no value is in both, as far as the outlines show.
func (s *schemaBuilder) distinct(o, p *outline) bool {
	if o.types&p.types == 0 || o.values != nil && p.values != nil && s.disjoint(o.values, p.values) {
		return true
	}
	if (o.types|p.types)&^typeNumber == 0 && (o.below(p) || p.below(o)) {
		return true
	}
	if o.types&p.types != typeObject {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(o.tags)) {
		if other := p.tags[name]; other != nil && s.disjoint(o.tags[name], other) {
			return true
		}
	}
	return o.excludes(p) || p.excludes(o)
}

// excludes reports whether o has no room for a property that p requires.
func (o *outline) excludes(p *outline) bool {
	for name := range p.required {
		if o.closed && !o.declared[name] {
			return true
		}
	}
	return false
}

// below reports whether every number of o is below every one of p.
func (o *outline) below(p *outline) bool {
	if !o.high.set || !p.low.set {
		return false
	}
	c := o.high.at.compare(p.low.at)
	return c < 0 || c == 0 && (o.high.exclusive || p.low.exclusive)
}

// disjoint reports whether no value is in both lists.
func (s *schemaBuilder) disjoint(a, b []*jsonValue) bool {
	x, y := s.keysOf(a), s.keysOf(b)
	if len(x) > len(y) {
		x, y = y, x
	}
	s.spend(len(x))
	for key := range x {
		if y[key] {
			return false
		}
	}
	return true
}
