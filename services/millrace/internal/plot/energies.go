package plot

import (
	"fmt"
	"math"
)

// drawn reports whether an energy has a place in the picture.
func drawn(v float64) bool { return math.Abs(v) <= 1e300 }

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
		return fmt.Sprintf("none of %d is finite", n)
	}
	s := fmt.Sprintf("%s, from %s to %s", count(n, "iteration"), short(first), short(last))
	if gaps > 0 {
		s += fmt.Sprintf(", %d not finite", gaps)
	}
	return s
}

func (c *canvas) drawEnergies(left float64, energies []float64) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, v := range energies {
		if drawn(v) {
			low, high = min(low, v), max(high, v)
		}
	}
	if low > high {
		return
	}
	x, y := newAxis(0, max(1, float64(len(energies)-1)), 1), newAxis(low, high, 0)
	c.frame(left, x, y, "iteration")
	c.WriteString(`<path class="line" fill="none" stroke-width="2" stroke-linejoin="round" stroke-linecap="round" d="`)
	begun := false
	for _, p := range thin(energies) {
		if !drawn(p.energy) {
			begun = false
			continue
		}
		at := px(left+x.place(float64(p.iteration), panelWidth)) + " " + px(panelTop+panelHeight-y.place(p.energy, panelHeight))
		if begun {
			c.WriteString("L" + at)
		} else {
			// A line of no length is a dot, in case nothing follows.
			c.WriteString("M" + at + "h0")
		}
		begun = true
	}
	c.WriteString(`"/>` + "\n")
}

type point struct {
	iteration int
	energy    float64
}

// thin returns at most two points for each pixel: the least and the greatest energy of those that fall on it.
func thin(energies []float64) []point {
	n := len(energies)
	columns := min(n, panelWidth)
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
