package guide

import "slices"

// Bounds of contains. An array is a rule for each number of items and of matching ones that its
// bounds distinguish.
const (
	maxContains    = 4       // of a goal
	maxCounts      = 1 << 12 // rules of an array
	maxMinContains = 64      // without maxContains, where the items that match are not known
)

// counted is a contains: how many items a schema accepts.
type counted struct {
	at          *jsonValue
	not         *jsonValue // the negation of its schema; nil if there is no upper bound
	least, most int        // most may be unbounded
}

// counts is how many items have come, and how many of them each contains has counted, up to what the
// bounds distinguish.
type counts struct {
	items   int
	matched [maxContains]int
}

// readContains reads contains, minContains and maxContains of a schema.
func (a *arraySchema) readContains(v *jsonValue) {
	c := counted{at: v.fields["contains"], least: 1, most: unbounded}
	if n, ok := a.natural(v, "minContains"); ok {
		c.least = n
	}
	if n, ok := a.natural(v, "maxContains"); ok {
		c.most = n
	}
	switch {
	case harmless(c.at): // every item is counted
		a.low = max(a.low, c.least)
		if c.most != unbounded && (a.high == unbounded || c.most < a.high) {
			a.high = c.most
		}
		return
	case c.least == 0 && c.most == unbounded:
		return
	case len(a.contains) == maxContains:
		a.refuse(c.at, "more than %d schemas of contains for one array", maxContains)
		return
	case c.most != unbounded:
		if c.not = a.negation(c.at); c.not == nil {
			a.refuse(c.at, "contains with maxContains and a schema whose negation is not built")
			return
		}
	case c.least > maxMinContains:
		a.refuse(c.at, "minContains is honoured up to %d, or with maxContains", maxMinContains)
		return
	}
	a.low = max(a.low, c.least)
	a.contains = append(a.contains, c)
}

// counting is an array with contains. A rule for each state has an item and what follows it.
func (a *arraySchema) counting() *node {
	rules := map[counts]int{}
	var rule func(at counts) *node
	rule = func(at counts) *node {
		if r, known := rules[at]; known {
			return a.call(r)
		}
		if len(rules) == maxCounts {
			return a.failAt(a.contains[0].at.path, ErrLimit, "contains and the bounds of the items combine to more than %d states", maxCounts)
		}
		r := a.rule()
		rules[at] = r
		a.spend(1)
		if at.items >= a.prefix && !slices.ContainsFunc(a.contains, func(c counted) bool { return c.most != unbounded }) && a.satisfied(at) {
			a.bodies[r] = a.from(at.items)
			return a.call(r)
		}
		var kids []*node
		a.choices(at, 0, a.goal(min(at.items, a.prefix)), func(next counts, goal []part) {
			if next.items++; a.high == unbounded {
				next.items = min(next.items, max(a.low, a.prefix))
			}
			more := a.none
			if a.high == unbounded || next.items < a.high {
				more = a.cat(a.comma, rule(next))
			}
			if next.items >= a.low && a.satisfied(next) {
				more = a.optional(more)
			}
			if more.kind != kindNone {
				kids = append(kids, a.cat(a.value(goal), more))
			}
		})
		a.bodies[r] = a.alt(kids...)
		return a.call(r)
	}
	n := a.enclosed('[', ']', rule(counts{}))
	if a.low == 0 && a.satisfied(counts{}) {
		n = a.alt(a.lit("[]"), n)
	}
	return n
}

// satisfied reports whether enough items have matched.
func (a *arraySchema) satisfied(at counts) bool {
	for i, c := range a.contains {
		if at.matched[i] < c.least {
			return false
		}
	}
	return true
}

// choices gives the goals of an item, each with the counts after it: by each contains from k on it is
// counted, or not. Without an upper bound an item that is not counted may match all the same.
func (a *arraySchema) choices(at counts, k int, goal []part, give func(next counts, goal []part)) {
	if a.err != nil {
		return
	}
	if k == len(a.contains) {
		give(at, goal)
		return
	}
	c := a.contains[k]
	with := func(v *jsonValue) []part { return append(slices.Clip(goal), part{at: v}) }
	if c.most == unbounded {
		a.choices(at, k+1, goal, give)
	} else {
		a.choices(at, k+1, with(c.not), give)
	}
	if c.most == unbounded && at.matched[k] == c.least || at.matched[k] == c.most {
		return
	}
	at.matched[k]++
	a.choices(at, k+1, with(c.at), give)
}
