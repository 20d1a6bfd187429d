package plot

import (
	"fmt"
	"strings"
)

// MaxRows is how many rows a scatter has at most, and maxCodewords how many codewords: more are thinned evenly.
const (
	MaxRows      = 1200
	maxCodewords = 400
)

// Point is a row or a codeword of dimension 2.
type Point [2]float64

func (p Point) drawn() bool { return drawn(p[0]) && drawn(p[1]) }

// Scatter is rows and codewords of dimension 2.
type Scatter struct {
	Rows      []Point
	AllRows   int64 // of which Rows are a sample
	Codewords []Point
}

func (s *Scatter) describe() string {
	some := func(n int, all int64, name string) string {
		if int64(n) >= all {
			return count(n, name)
		}
		return fmt.Sprintf("%d of %s", n, count(int(all), name))
	}
	codewords := some(len(evenly(s.Codewords, maxCodewords)), int64(len(s.Codewords)), "codeword")
	if len(s.Rows) == 0 {
		return codewords
	}
	rows := some(len(evenly(s.Rows, MaxRows)), max(s.AllRows, int64(len(s.Rows))), "row")
	if len(s.Codewords) == 0 {
		return rows
	}
	return rows + " (small), " + codewords + " (large)"
}

func (c *canvas) drawScatter(p panel, s *Scatter) {
	rows, codewords := evenly(s.Rows, MaxRows), evenly(s.Codewords, maxCodewords)
	name := "Rows and codewords"
	switch {
	case len(rows) == 0:
		name = "Codewords"
	case len(codewords) == 0:
		name = "Rows"
	}
	c.heading(p, name, s.describe())
	var ends [2][]float64
	for _, list := range [][]Point{rows, codewords} {
		for _, at := range list {
			if at.drawn() {
				ends[0], ends[1] = append(ends[0], at[0]), append(ends[1], at[1])
			}
		}
	}
	if len(ends[0]) == 0 {
		return
	}
	x, y := scatterAxes(p, ends[0], ends[1])
	c.frame(p, x, y, "first element; the second upwards")
	dots := func(list []Point) string {
		var d strings.Builder
		for _, at := range list {
			if at.drawn() { // a line of no length with round ends is a dot
				d.WriteString("M" + digits(p.x(x, at[0]), 1) + " " + digits(p.y(y, at[1]), 1) + "h0")
			}
		}
		return d.String()
	}
	c.path("row", ` fill="none" stroke-width="2.5" stroke-linecap="round"`, dots(rows))
	c.path("codeword", ` fill="none" stroke-width="5.5" stroke-linecap="round"`, dots(codewords))
}

// scatterAxes returns axes with one scale, so that distances compare; but two if one range is more than five times the other.
func scatterAxes(p panel, xs, ys []float64) (x, y axis) {
	left, right := span(xs)
	low, high := span(ys)
	scaleX, scaleY := (right-left)/p.width, (high-low)/p.height
	if most := max(scaleX, scaleY); most <= 5*min(scaleX, scaleY) {
		scaleX, scaleY = most, most
	}
	around := func(middle, length float64) axis {
		half := float64(length * 0.53) // a margin, and rounded, so that all machines draw the same
		return newAxis(middle-half, middle+half, 0)
	}
	return around(left/2+right/2, scaleX*p.width), around(low/2+high/2, scaleY*p.height)
}

// evenly returns at most n of a list, at equal distances.
func evenly(list []Point, n int) []Point {
	if len(list) <= n {
		return list
	}
	thinned := make([]Point, n)
	for i := range thinned {
		thinned[i] = list[i*len(list)/n]
	}
	return thinned
}
