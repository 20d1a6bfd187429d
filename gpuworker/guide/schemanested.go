package guide

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
