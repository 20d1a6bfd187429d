package guide

// arraySchema is a goal for arrays: an item for each position that prefixItems names, then others.
type arraySchema struct {
	*schemaBuilder
	parts     []part
	low, high int // items; high may be unbounded
	prefix    int
	contains  []counted
	distinct  *jsonValue // uniqueItems, if two items may come; nil: none
}

// array builds the arrays of a goal.
func (s *schemaBuilder) array(parts []part) *node {
	a := arraySchema{schemaBuilder: s, parts: parts, high: unbounded}
	a.read()
	switch {
	case s.err != nil || a.high != unbounded && a.low > a.high:
		return s.none
	case a.high == 0:
		return s.lit("[]")
	case len(a.contains) > 0:
		return a.counting()
	}
	if a.distinct != nil {
		if n := a.unique(a.distinct); n != nil {
			return n
		}
	}
	n := s.enclosed('[', ']', a.from(0))
	if a.low == 0 {
		n = s.alt(s.lit("[]"), n)
	}
	return n
}

// read reads the keywords that concern more than one item.
func (a *arraySchema) read() {
	for _, p := range a.parts {
		if p.at.kind != jsonObject {
			continue
		}
		a.low, a.high = a.limits(p.at, "minItems", "maxItems", a.low, a.high)
		if list := p.at.fields["prefixItems"]; list != nil {
			a.prefix = max(a.prefix, len(a.schemas(p.at, "prefixItems")))
		}
		if p.at.fields["contains"] != nil {
			a.readContains(p.at)
		}
	}
	for _, p := range a.parts {
		unique := p.at.fields["uniqueItems"]
		switch {
		case unique == nil || !unique.truth || a.high != unbounded && a.high <= 1:
		case len(a.contains) > 0:
			a.refuse(unique, "uniqueItems beside contains")
		default:
			a.distinct = unique
		}
	}
	if a.high != unbounded {
		a.prefix = min(a.prefix, a.high)
	}
}

// goal returns the schemas of the item at a position.
func (a *arraySchema) goal(i int) []part {
	var goal []part
	for _, p := range a.parts {
		if p.at.kind != jsonObject {
			continue
		}
		if list := p.at.fields["prefixItems"]; list != nil && i < len(list.items) {
			goal = append(goal, part{at: list.items[i]})
		} else if rest := p.at.fields["items"]; rest != nil {
			goal = append(goal, part{at: rest})
		}
	}
	return goal
}

// from is item n and those that follow it.
func (a *arraySchema) from(n int) *node {
	rest, least, most := a.value(a.goal(a.prefix)), max(a.low-a.prefix, 0), a.high
	if most != unbounded {
		most -= a.prefix
	}
	if n >= a.prefix {
		if most = a.high; most != unbounded {
			most -= n + 1
		}
		return a.cat(rest, a.count(a.cat(a.comma, rest), max(a.low-n-1, 0), most))
	}
	tail := a.count(a.cat(a.comma, rest), least, most) // behind the item before it
	for i := a.prefix - 1; i >= n; i-- {
		m := a.cat(a.value(a.goal(i)), tail)
		if i > n {
			m = a.cat(a.comma, m)
		}
		if i >= a.low && i > n {
			m = a.optional(m)
		}
		tail = m
	}
	return tail
}
