package guide

import "slices"

// array builds the arrays of a goal: an item for each position that prefixItems names, then others.
func (s *schemaBuilder) array(parts []part) *node {
	low, high, prefix := 0, unbounded, 0
	for _, p := range parts {
		if p.at.kind != jsonObject {
			continue
		}
		low, high = s.limits(p.at, "minItems", "maxItems", low, high)
		if list := p.at.fields["prefixItems"]; list != nil {
			prefix = max(prefix, len(s.schemas(p.at, "prefixItems")))
		}
	}
	for _, p := range parts {
		if unique := p.at.fields["uniqueItems"]; unique != nil && unique.truth && (high == unbounded || high > 1) {
			s.refuse(unique, "uniqueItems of more than one item")
		}
	}
	if high != unbounded && low > high {
		return s.none
	}
	if high != unbounded {
		prefix = min(prefix, high)
	}
	item := func(i int) *node {
		var goal []part
		for _, p := range parts {
			if p.at.kind != jsonObject {
				continue
			}
			if list := p.at.fields["prefixItems"]; list != nil && i < len(list.items) {
				goal = append(goal, part{at: list.items[i]})
			} else if rest := p.at.fields["items"]; rest != nil {
				goal = append(goal, part{at: rest})
			}
		}
		return s.value(goal)
	}
	if high == 0 {
		return s.lit("[]")
	}
	rest := item(prefix)
	most := high
	if high != unbounded {
		most = high - prefix
	}
	fewest := max(low-prefix, 0)
	if prefix == 0 {
		return s.list(rest, low, high)
	}
	tail := s.count(s.cat(s.comma, rest), fewest, most) // behind the item before it
	for i := prefix - 1; i >= 0; i-- {
		n := s.cat(item(i), tail)
		if i > 0 {
			n = s.cat(s.comma, n)
		}
		if i >= low && i > 0 {
			n = s.optional(n)
		}
		tail = n
	}
	n := s.enclosed('[', ']', tail)
	if low == 0 {
		n = s.alt(s.lit("[]"), n)
	}
	return n
}

// list is low to high items of one kind.
func (s *schemaBuilder) list(item *node, low, high int) *node {
	most := high
	if high != unbounded {
		most--
	}
	n := s.enclosed('[', ']', s.cat(item, s.count(s.cat(s.comma, item), max(low-1, 0), most)))
	if low == 0 {
		n = s.alt(s.lit("[]"), n)
	}
	return n
}

// property is one of an object's.
type property struct {
	name     string
	required bool
}

// object builds the objects of a goal.
func (s *schemaBuilder) object(parts []part) *node {
	all := s.properties(parts)
	if s.err != nil {
		return s.none
	}
	members := make([]*node, len(all))
	for i, p := range all {
		var goal []part
		for _, of := range parts {
			goal = append(goal, s.member(of, p.name)...)
		}
		members[i] = s.seq(s.quote(s.text(quoted, p.name)), s.colon, s.value(goal))
		s.spend(4 * len(parts)) // each is looked up in several ways
	}
	extra := s.extra(parts, all)
	s.countProperties(parts, all, extra.kind != kindNone)

	// behind is what follows after a member, begin what follows where there is none yet.
	behind := s.rep(s.cat(s.comma, extra), 0, unbounded)
	begin := s.cat(extra, behind)
	mayBeEmpty := true
	for i, p := range slices.Backward(all) {
		begins := s.cat(members[i], behind)
		after := s.seq(s.comma, members[i], behind)
		if p.required {
			begin, behind, mayBeEmpty = begins, after, false
			continue
		}
		begin = s.alt(begins, begin)
		behind = s.cat(s.optional(s.cat(s.comma, members[i])), behind)
	}
	n := s.none
	if begin.kind != kindNone {
		n = s.enclosed('{', '}', begin)
	}
	if mayBeEmpty {
		n = s.alt(s.lit("{}"), n)
	}
	return n
}

// properties returns those that the goal names, in declared order, and then those that it requires
// without naming them.
func (s *schemaBuilder) properties(parts []part) []property {
	var all []property
	index := map[string]int{}
	for _, p := range parts {
		named := p.at.fields["properties"]
		if named == nil {
			continue
		}
		if named.kind != jsonObject {
			s.failAt(named.path, ErrSyntax, "properties is an object of schemas")
			return nil
		}
		for _, name := range named.keys {
			if _, known := index[name]; !known {
				index[name] = len(all)
				all = append(all, property{name: name})
			}
		}
	}
	for _, p := range parts {
		list := p.at.fields["required"]
		if list == nil {
			continue
		}
		if list.kind != jsonArray {
			s.failAt(list.path, ErrSyntax, "required is a list of names")
			return nil
		}
		for _, name := range list.items {
			if name.kind != jsonString {
				s.failAt(name.path, ErrSyntax, "required is a list of names")
				return nil
			}
			i, known := index[name.text]
			if !known {
				i = len(all)
				index[name.text] = i
				all = append(all, property{name: name.text})
			}
			all[i].required = true
		}
	}
	return all
}

// member returns the schema of a property: the declared one, or else that of other properties.
func (s *schemaBuilder) member(of part, name string) []part {
	if of.at.kind != jsonObject {
		return nil
	}
	if named := of.at.fields["properties"]; named != nil && named.fields[name] != nil {
		return []part{{at: named.fields[name]}}
	}
	if others := of.at.fields["additionalProperties"]; others != nil {
		return []part{{at: others}}
	}
	return nil
}

// extra is a property that is not among all, or none.
func (s *schemaBuilder) extra(parts []part, all []property) *node {
	var goal []part
	for _, p := range parts {
		others := p.at.fields["additionalProperties"]
		if others == nil {
			continue
		}
		if others.kind == jsonBool && !others.truth {
			return s.none
		}
		goal = append(goal, part{at: others})
	}
	name := s.rep(s.anyChar(quoted), 0, unbounded)
	if len(all) > 0 {
		names := make([]*node, len(all))
		for i, p := range all {
			names[i] = s.text(quoted, p.name)
		}
		name = s.and(name, s.not(s.alt(names...)))
	}
	return s.seq(s.quote(s.determinise(name)), s.colon, s.value(goal))
}

// countProperties refuses bounds on the number of properties, unless they follow from the others.
func (s *schemaBuilder) countProperties(parts []part, all []property, open bool) {
	required := 0
	for _, p := range all {
		if p.required {
			required++
		}
	}
	for _, p := range parts {
		if p.at.kind != jsonObject {
			continue
		}
		if n, ok := s.natural(p.at, "minProperties"); ok && n > required {
			s.refuse(p.at.fields["minProperties"], "minProperties above the number of required properties")
		}
		if n, ok := s.natural(p.at, "maxProperties"); ok && (open || n < len(all)) {
			s.refuse(p.at.fields["maxProperties"], "maxProperties below the number of declared properties, or with others")
		}
	}
}
