package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// drawn reports whether a value has a place in the picture.
func drawn(v float64) bool { return math.Abs(v) <= 1e300 }

// span returns the least and the greatest drawn value; low is above high if no value is drawn.
func span(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if drawn(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	return low, high
}

func (f Figure) describeEnergies() string {
	first, last, gaps := math.NaN(), math.NaN(), 0
	for _, v := range f.Energies {
		switch {
		case !drawn(v):
			gaps++
			continue
		case math.IsNaN(first):
			first = v
		}
		last = v
	}
	n := len(f.Energies)
	switch {
	case n == 0:
		return "none recorded"
	case gaps == n:
		return fmt.Sprintf("none of %s is finite", count(n, "value"))
	}
	// The first energy is that of the codewords before any iteration.
	s := fmt.Sprintf("%s, from %s to %s", count(n-1, "iteration"), short(first), short(last))
	if gaps > 0 {
		s += fmt.Sprintf(", %d not finite", gaps)
	}
	return s
}

// energyAxis returns the vertical axis of energies: logarithmic if they fall to less than a tenth, because a linear one would show
// the first drop and nothing after it.
func energyAxis(energies []float64) axis {
	low, high := span(energies)
	if low > 1e-300 && high/10 > low {
		return newLogAxis(low, high)
	}
	return newRoundAxis(low, high)
}

func (c *canvas) drawEnergies(p panel, f Figure) {
	summary, name := f.describeEnergies(), "Energy over iterations"
	low, high := span(f.Energies)
	if low > high {
		c.heading(p, name, summary)
		return
	}
	x, y := newAxis(0, max(1, float64(len(f.Energies)-1)), 1), energyAxis(f.Energies)
	if y.log {
		name += ", log scale"
	}
	c.heading(p, name, summary)
	c.frame(p, x, y, "iteration")
	c.curve(p, x, y, f.Energies, 0)
	c.drawTail(p, y, f.Energies)
}

// curve draws values, the first of which has the number first.
func (c *canvas) curve(p panel, x, y axis, values []float64, first int) {
	var d strings.Builder
	begun := false
	for _, v := range thin(values, int(p.width)) {
		if !drawn(v.energy) {
			begun = false
			continue
		}
		at := px(p.x(x, float64(first+v.iteration))) + " " + px(p.y(y, v.energy))
		if begun {
			d.WriteString("L" + at)
		} else {
			// A line of no length is a dot, in case nothing follows.
			d.WriteString("M" + at + "h0")
		}
		begun = true
	}
	c.path("line", ` fill="none" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"`, d.String())
}

// The box of drawTail, relative to its panel, and the part of the panel's height, from the bottom, that it leaves free.
const (
	tailLeft, tailTop, tailWidth, tailHeight = 142, 6, 218, 118
	tailFree                                 = 0.4
)

// drawTail draws in a box the energies without the first twentieth of the iterations, because the
// first drop leaves the rest of the curve no height. It draws nothing unless the first drop has more
// than half of the height and the rest of the curve stays below the box.
func (c *canvas) drawTail(p panel, y axis, energies []float64) {
	n := len(energies)
	if n < 5 || slices.ContainsFunc(energies, func(v float64) bool { return !drawn(v) }) {
		return
	}
	low, high := span(energies)
	_, rest := span(energies[1:])
	all := y.place(high, p.height) - y.place(low, p.height)
	if y.place(energies[0], p.height)-y.place(energies[1], p.height) < all/2 || y.place(rest, p.height) > tailFree*p.height {
		return
	}
	first := max(1, (n-1)/20)
	tail := energies[first:]
	low, high = span(tail)
	left, top := p.left+tailLeft, p.top+tailTop
	fmt.Fprintf(c, `<rect class="inset" x="%s" y="%s" width="%d" height="%d"/>`+"\n", px(left), px(top), tailWidth, tailHeight)
	name := fmt.Sprintf("from iteration %d on", first)
	if y.log {
		name += ", linear scale"
	}
	c.text(left+8, top+16, "note", "start", name)
	x, y := newAxis(float64(first), float64(n-1), 1), newRoundAxis(low, high)
	inner := panel{left + 62, top + 28, tailWidth - 74, tailHeight - 54}
	for _, t := range []tick{y.ticks[0], y.ticks[len(y.ticks)-1]} {
		at := inner.y(y, t.at)
		c.rule("grid", "", inner.left, at, inner.right(), at)
		c.text(inner.left-6, at+4, "note", "end", t.text)
	}
	c.text(inner.left, inner.bottom()+16, "note", "middle", fmt.Sprint(first))
	c.text(inner.right(), inner.bottom()+16, "note", "middle", fmt.Sprint(n-1))
	c.curve(inner, x, y, tail, first)
}

type point struct {
	iteration int
	energy    float64
}

// thin returns at most two points for each of some columns: the least and the greatest energy of those that fall on it.
func thin(energies []float64, columns int) []point {
	n := len(energies)
	columns = min(n, columns)
	var points []point
	for column := range columns {
		from, to := column*n/columns, (column+1)*n/columns
		low, high := point{from, energies[from]}, point{from, energies[from]}
		for i := from + 1; i < to; i++ {
			if v := energies[i]; drawn(v) {
				if !drawn(low.energy) || v < low.energy {
					low = point{i, v}
				}
				if !drawn(high.energy) || v > high.energy {
					high = point{i, v}
				}
			}
		}
		if low.iteration > high.iteration {
			low, high = high, low
		}
		points = append(points, low)
		if high.iteration > low.iteration {
			points = append(points, high)
		}
	}
	return points
}
