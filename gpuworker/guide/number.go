package guide

import (
	"cmp"
	"strings"
)

// decimal is a number as its digits: (-)integer.fraction, without needless zeros.
type decimal struct {
	negative          bool
	integer, fraction string
}

// parseDecimal reads a JSON number. It expands exponents of up to 40.
func parseDecimal(s string) (d decimal, ok bool) {
	d.negative = strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	mantissa, exponent := s, 0
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		mantissa = s[:i]
		digits, sign := strings.TrimLeft(s[i+1:], "+"), 1
		if strings.HasPrefix(digits, "-") {
			digits, sign = digits[1:], -1
		}
		for _, c := range digits {
			if exponent = exponent*10 + int(c-'0'); exponent > 40 {
				return d, false
			}
		}
		exponent *= sign
	}
	d.integer, d.fraction, _ = strings.Cut(mantissa, ".")
	for ; exponent > 0; exponent-- {
		if d.fraction == "" {
			d.fraction = "0"
		}
		d.integer, d.fraction = d.integer+d.fraction[:1], d.fraction[1:]
	}
	for ; exponent < 0; exponent++ {
		if d.integer == "" {
			d.integer = "0"
		}
		n := len(d.integer) - 1
		d.integer, d.fraction = d.integer[:n], d.integer[n:]+d.fraction
	}
	d.integer, d.fraction = strings.TrimLeft(d.integer, "0"), strings.TrimRight(d.fraction, "0")
	if d.integer == "" && d.fraction == "" {
		d.negative = false
	}
	return d, len(d.integer)+len(d.fraction) <= 64
}

// compare orders numbers: -1, 0 or 1.
func (d decimal) compare(e decimal) int {
	if d.negative != e.negative {
		if d.negative {
			return -1
		}
		return 1
	}
	c := cmp.Or(
		len(d.integer)-len(e.integer), strings.Compare(d.integer, e.integer),
		strings.Compare(d.fraction, e.fraction), // without zeros at the end
	)
	if d.negative {
		c = -c
	}
	return min(max(c, -1), 1)
}

// bound is one end of a range; the zero value is none.
type bound struct {
	set       bool
	at        decimal
	exclusive bool
}

// numbers describes the numbers that a schema allows.
type numbers struct {
	integer   bool
	low, high bound
	multiple  int // > 0: multiples of it alone, which are integers
}

// numberState is where a number has got.
type numberState struct {
	phase     byte // of the digits: see below
	negative  bool
	low, high comparison
	remainder int // of the digits before the point, by numbers.multiple
}

// Phases of a number.
const (
	phaseStart byte = iota
	phaseSign
	phaseZero // the integer is 0
	phaseInteger
	phasePoint
	phaseFraction
)

// comparison orders the magnitude of the digits so far and that of a bound.
type comparison struct {
	digits   int // of the integer, at most one more than the bound has
	order    int // of the digits that both have: -1, 0 or 1
	fraction int // digits behind the point that were equal
}

func (c comparison) integer(at decimal, digit byte) comparison {
	if c.digits < len(at.integer) && c.order == 0 {
		c.order = sign(int(digit) - int(at.integer[c.digits]))
	}
	c.digits = min(c.digits+1, len(at.integer)+1)
	return c
}

// point decides the comparison by the integers' lengths.
func (c comparison) point(at decimal) comparison {
	if c.digits != len(at.integer) {
		c.order = sign(c.digits - len(at.integer))
	}
	c.digits = 0
	return c
}

func (c comparison) behind(at decimal, digit byte) comparison {
	if c.order != 0 {
		return comparison{order: c.order}
	}
	want := byte('0')
	if c.fraction < len(at.fraction) {
		want = at.fraction[c.fraction]
		c.fraction++
	}
	c.order = sign(int(digit) - int(want))
	if c.order != 0 {
		c.fraction = 0
	}
	return c
}

// end is the final order of the magnitudes of the number and the bound.
func (c comparison) end(at decimal) int {
	if c.order == 0 && c.fraction < len(at.fraction) {
		return -1
	}
	return c.order
}

func sign(n int) int { return min(max(n, -1), 1) }

// number is a JSON number. Without bounds it may have an exponent of two digits; with bounds it has
// none, and the automaton compares its digits with those of the bounds.
func (b *builder) number(n numbers) *node {
	digits, nonzero := b.rep(b.bytesOf('0', '9'), 0, unbounded), b.bytesOf('1', '9')
	if !n.low.set && !n.high.set && n.multiple <= 1 {
		integer := b.cat(b.optional(b.one('-')), b.alt(b.one('0'), b.cat(nonzero, digits)))
		if n.integer {
			return integer
		}
		fraction := b.optional(b.seq(b.one('.'), b.bytesOf('0', '9'), digits))
		exponent := b.optional(b.seq(b.anyOf("eE"), b.optional(b.anyOf("+-")), b.rep(b.bytesOf('0', '9'), 1, 2)))
		return b.seq(integer, fraction, exponent)
	}
	p := newPartition()
	p.refine(func(c byte) int32 {
		if c >= '0' && c <= '9' || c == '-' || c == '.' {
			return int32(c)
		}
		return 0
	})
	reps := p.representatives()
	return explore(b, p, numberState{},
		func(at numberState, class int) (numberState, bool) { return n.step(at, reps[class]) },
		n.accepts)
}

// step is the state after a byte.
func (n *numbers) step(s numberState, c byte) (numberState, bool) {
	switch {
	case c == '-' && s.phase == phaseStart:
		return numberState{phase: phaseSign, negative: true}, true
	case c == '.' && (s.phase == phaseZero || s.phase == phaseInteger) && !n.integer:
		return numberState{
			phase: phasePoint, negative: s.negative, low: s.low.point(n.low.at), high: s.high.point(n.high.at),
		}, true
	case c < '0' || c > '9' || s.phase == phaseZero:
		return s, false
	}
	if s.phase >= phasePoint {
		s.phase = phaseFraction
		s.low, s.high = s.low.behind(n.low.at, c), s.high.behind(n.high.at, c)
		return s, true
	}
	if c == '0' && s.phase < phaseZero {
		s.phase = phaseZero
		return s, true // a zero does not count as a digit of the integer, as in a decimal
	}
	s.phase = phaseInteger
	s.low, s.high = s.low.integer(n.low.at, c), s.high.integer(n.high.at, c)
	if n.multiple > 1 {
		s.remainder = (s.remainder*10 + int(c-'0')) % n.multiple
	}
	return s, true
}

// accepts reports whether a number may end here.
func (n *numbers) accepts(s numberState) bool {
	switch s.phase {
	case phaseStart, phaseSign, phasePoint:
		return false
	case phaseZero, phaseInteger:
		s.low, s.high = s.low.point(n.low.at), s.high.point(n.high.at)
	}
	if s.remainder != 0 {
		return false
	}
	return n.low.allows(s.low, s.negative, 1) && n.high.allows(s.high, s.negative, -1)
}

// allows reports whether a number is on the bound's side: 1 is above, -1 is below.
func (e *bound) allows(c comparison, negative bool, side int) bool {
	if !e.set {
		return true
	}
	order := c.end(e.at)
	zero := e.at.integer == "" && e.at.fraction == ""
	switch {
	case zero && order == 0: // 0 and -0
	case negative && !e.at.negative:
		order = -1
	case !negative && e.at.negative:
		order = 1
	case negative:
		order = -order
	}
	return order == side || order == 0 && !e.exclusive
}
