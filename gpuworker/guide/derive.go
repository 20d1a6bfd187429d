package guide

import "math"

// derive returns what may follow byte c in a text of n: the derivative of n by c (Brzozowski,
// "Derivatives of regular expressions", JACM 1964). A rule that is called becomes its body's
// derivative and what follows the call, so that the terms that follow each other are the stack of a
// pushdown automaton. No rule calls itself before it consumed a byte, so derive ends.
func (r *arena) derive(n *node, c byte) *node {
	switch n.kind {
	case kindNone, kindEmpty:
		return r.none
	case kindSet:
		if n.set.has(c) {
			return r.empty
		}
		return r.none
	case kindLit:
		if n.lit[0] == c {
			return r.lit(n.lit[1:])
		}
		return r.none
	case kindCat:
		d := r.follow(r.derive(n.a, c), n.b)
		if !n.a.nullable {
			return d
		}
		return r.alt(d, r.derive(n.b, c))
	case kindRep:
		d := r.derive(n.a, c)
		if d.kind == kindNone {
			return d
		}
		high := int(n.high)
		if high != unbounded {
			high--
		}
		return r.follow(d, r.rep(n.a, max(int(n.low)-1, 0), high))
	case kindCall:
		if r.classes > 0 {
			return r.step(r.rules[n.low], c)
		}
		return r.derive(r.rules[n.low], c)
	case kindDFA:
		return r.automaton(n.dfa, n.dfa.step(n.low, c))
	case kindKeys:
		return r.stepKeys(n, c)
	case kindDistinct:
		return r.stepDistinct(n, c)
	case kindNot:
		return r.not(r.derive(n.a, c))
	default: // a union or an intersection
	}
	kids := make([]*node, len(n.kids))
	for i, k := range n.kids {
		kids[i] = r.derive(k, c)
	}
	return r.combine(n.kind, kids)
}

// step is derive with a memory. It needs the grammar's byte classes.
func (r *arena) step(n *node, c byte) *node {
	class := r.classOf[c]
	if n.next == nil {
		n.next = make([]*node, r.classes)
		r.bytes += 8 * r.classes
	}
	d := n.next[class]
	if d == nil {
		d = r.derive(n, c)
		n.next[class] = d
	}
	return d
}

// keysCost is about the number of terms that the end of a key makes.
const keysCost = 8

// costOf is how many terms a derivative of n visits at most, at least 1.
func (r *arena) costOf(n *node) uint32 {
	if n.cost > 0 {
		return n.cost
	}
	sum := uint64(1)
	switch n.kind {
	case kindCat:
		sum += uint64(r.costOf(n.a))
		if n.a.nullable {
			sum += uint64(r.costOf(n.b))
		}
	case kindRep, kindNot:
		sum += uint64(r.costOf(n.a))
	case kindCall:
		sum += uint64(r.costOf(r.rules[n.low]))
	case kindAlt, kindAnd:
		for _, k := range n.kids {
			sum += uint64(r.costOf(k))
		}
	case kindKeys:
		sum = keysCost + n.object.scans(n.at)
	case kindDistinct:
		sum = keysCost + 2*uint64(len(n.distinct.values))
	case kindNone, kindEmpty, kindSet, kindLit, kindDFA:
	}
	n.cost = uint32(min(sum, math.MaxUint32/2))
	return n.cost
}
