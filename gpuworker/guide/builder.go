package guide

import "fmt"

// Limits of a source and of the grammar built from it. They count bytes, terms, states and steps and never
// time, so that every worker accepts and refuses the same sources.
const (
	maxSource = 256 << 10 // bytes
	// maxCount bounds a counted repetition, and the product of those that are inside each other.
	maxCount  = 1 << 16
	maxNodes  = 1 << 16 // terms of a grammar
	maxTables = 8 << 20 // bytes of its automata
	maxNames  = 1 << 17 // nodes of the tries of its objects' names, each of about nameNodeBytes
	maxStates = 1 << 15 // of one automaton
	maxWork   = 1 << 22 // steps of building a grammar
	maxStack  = 1 << 12 // terms that follow each other in a state, see arena.maxDepth
	maxNested = 64      // levels of a source: brackets, groups, schemas
	// maxProblem bounds the sentence of an error, in bytes: it may quote the source.
	maxProblem = 512
	// maxDropped bounds the ignored keywords that a grammar lists.
	maxDropped = 256
)

// builder makes the terms of a grammar. The first problem sticks; from then on it makes nothing.
type builder struct {
	*arena
	bodies []*node // by rule; nil: not built yet
	path   string  // where it is in the source, for errors
	work   int
	tables int // bytes of automata
	names  int // nodes of tries of names
	err    *Error
	// objects are those of kindKeys terms.
	objects []*object
	// classesOf has the automata of classes of characters, see chars.
	classesOf map[*node]*node
	freeTexts map[string]*node // by what they do not contain, see freeText
	nested    map[*Source]*node
}

func newBuilder() *builder {
	return &builder{arena: newArena(), classesOf: map[*node]*node{}, freeTexts: map[string]*node{}, nested: map[*Source]*node{}}
}

// fail records a problem at the present path, unless there is one. It returns none.
func (b *builder) fail(kind error, format string, args ...any) *node {
	return b.failAt(b.path, kind, format, args...)
}

// failed is fail for a caller that returns an error.
func (b *builder) failed(kind error, format string, args ...any) error {
	b.fail(kind, format, args...)
	return b.err
}

func (b *builder) failAt(path string, kind error, format string, args ...any) *node {
	if b.err == nil {
		b.err = &Error{Kind: kind, Path: path, Problem: short(fmt.Sprintf(format, args...), maxProblem)}
	}
	return b.none
}

// spend counts steps of work and checks the number of terms.
func (b *builder) spend(steps int) {
	if b.work += steps; b.work > maxWork {
		b.fail(ErrLimit, "building it takes more than %d steps", maxWork)
	}
	if len(b.known) > maxNodes {
		b.fail(ErrLimit, "it has more than %d terms", maxNodes)
	}
}

// rule reserves the number of a rule.
func (b *builder) rule() int {
	b.bodies = append(b.bodies, nil)
	return len(b.bodies) - 1
}

// count checks the bounds of a repetition of a.
func (b *builder) count(a *node, low, high int) *node {
	if high != unbounded && low > high {
		return b.fail(ErrSyntax, "a repetition has the bounds %d and %d", low, high)
	}
	most := max(low, high, 1)
	if most > maxCount || most*countIn(a) > maxCount {
		return b.fail(ErrLimit, "it repeats something more than %d times", maxCount)
	}
	return b.rep(a, low, high)
}

// countIn is the product of the nested bounds of a term.
func countIn(n *node) int {
	switch n.kind {
	case kindRep:
		return min(max(int(n.low), int(n.high), 1)*countIn(n.a), maxCount+1)
	case kindCat:
		most := 1
		for ; n.kind == kindCat; n = n.b {
			most = max(most, countIn(n.a))
		}
		return max(most, countIn(n))
	case kindAlt:
		most := 1
		for _, k := range n.kids {
			most = max(most, countIn(k))
		}
		return most
	default:
		return 1
	}
}

// longest returns the length of a term's longest text in bytes, which is no less than in characters, or
// unbounded if it has none or is above maxCount.
func longest(n *node) int {
	sum := 0
	switch n.kind {
	case kindNone, kindEmpty:
	case kindSet:
		sum = 1
	case kindLit:
		sum = len(n.lit)
	case kindCat:
		a, b := longest(n.a), longest(n.b)
		if sum = a + b; a == unbounded || b == unbounded {
			return unbounded
		}
	case kindAlt:
		for _, k := range n.kids {
			most := longest(k)
			if sum = max(sum, most); most == unbounded {
				return unbounded
			}
		}
	case kindRep:
		a := longest(n.a)
		if sum = a * int(n.high); a == unbounded || n.high == unbounded {
			return unbounded
		}
	default:
		return unbounded
	}
	if sum > maxCount {
		return unbounded
	}
	return sum
}
