package plot

import (
	"fmt"
	"slices"
	"strings"
)

// maxBars is how many bars have room: one on every second pixel.
const maxBars = panelWidth / 2

// describeLoads sums up the rows of the codewords.
func (f Figure) describeLoads() string {
	if len(f.Loads) == 0 {
		return "none recorded"
	}
	empty := 0
	for _, n := range f.Loads {
		if n <= 0 {
			empty++
		}
	}
	of := count(len(f.Loads), "codeword")
	if s := f.subspaces(); s > 1 {
		of = fmt.Sprintf("%d subspaces of %s", s, count(len(f.Loads)/s, "codeword"))
	}
	return fmt.Sprintf("%s, %d empty, largest %d, mean %s", of, empty, max(0, slices.Max(f.Loads)), short(mean(heights(f.Loads))))
}

// drawLoads draws the rows of each codeword of a flat codebook.
func (c *canvas) drawLoads(p panel, f Figure) {
	c.heading(p, "Rows of each codeword, most first", f.describeLoads())
	c.drawBars(p, descending(heights(f.Loads)), "codewords")
}

// describeVariances sums up the variances of the codewords.
func (f Figure) describeVariances() string {
	v := descending(f.Variances)
	if len(v) == 0 {
		return "none finite"
	}
	return fmt.Sprintf("%s with rows, least %s, largest %s, mean %s", count(len(v), "codeword"), short(v[len(v)-1]), short(v[0]), short(mean(v)))
}

// drawVariances draws the variance of each codeword of a flat codebook.
func (c *canvas) drawVariances(p panel, f Figure) {
	c.heading(p, "Variance of each codeword, most first", f.describeVariances())
	c.drawBars(p, descending(f.Variances), "codewords")
}

// describeShares sums up the energies of the subspaces.
func (f Figure) describeShares() string {
	v := descending(f.SubspaceEnergies)
	if len(v) == 0 {
		return "none finite"
	}
	return fmt.Sprintf("%s, least %s, largest %s, mean %s", count(len(v), "subspace"), short(v[len(v)-1]), short(v[0]), short(mean(v)))
}

// drawShares draws the energy of each subspace, in their order: those that are not finite have no bar.
func (c *canvas) drawShares(p panel, f Figure) {
	c.heading(p, "Energy of each subspace", f.describeShares())
	values := slices.Clone(f.SubspaceEnergies)
	for i, v := range values {
		if !drawn(v) {
			values[i] = 0
		}
	}
	c.drawBars(p, values, "subspaces")
}

// drawBars draws values in their order, and a line at their mean; name is what they are of. If they have no room, a bar is the mean of
// several.
func (c *canvas) drawBars(p panel, values []float64, name string) {
	if len(values) == 0 {
		return
	}
	each := (len(values) + maxBars - 1) / maxBars
	bars := barsOf(values, each)
	average := mean(values)
	low, high := span(bars)
	if low, high = min(0, low, average), max(0, high, average); low == high {
		high = 1
	}
	x, y := newAxis(0, float64(len(values)), 1), newRoundAxis(low, high)
	if each > 1 {
		name = fmt.Sprintf("%s; a bar is the mean of %d", name, each)
	}
	c.frame(p, x, y, name)
	var d strings.Builder
	zero := px(p.y(y, 0))
	for i, v := range bars {
		from := p.x(x, float64(i*each))
		to := p.x(x, float64(min((i+1)*each, len(values))))
		// A gap of a tenth between bars.
		gap := (to - from) / 10
		if v != 0 {
			d.WriteString("M" + px(from) + " " + zero + "V" + px(p.y(y, v)) + "H" + px(to-gap) + "V" + zero + "z")
		}
	}
	c.path("bar", "", d.String())
	at := p.y(y, average)
	c.rule("mean", ` stroke-width="1.5" stroke-dasharray="5 4"`, p.left, at, p.right(), at)
}

// heights returns loads as numbers; those below 0, which cannot be, are 0.
func heights(loads []int64) []float64 {
	values := make([]float64, len(loads))
	for i, n := range loads {
		values[i] = float64(max(0, n))
	}
	return values
}

// descending returns the values that are drawn, most first.
func descending(values []float64) []float64 {
	sorted := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return !drawn(v) })
	slices.Sort(sorted)
	slices.Reverse(sorted)
	return sorted
}

// barsOf returns the heights of the bars, the means of each neighbouring values; the last one may be of fewer.
func barsOf(values []float64, each int) []float64 {
	var bars []float64
	for part := range slices.Chunk(values, each) {
		bars = append(bars, mean(part))
	}
	return bars
}

// mean divides before it adds: sums of values up to 1e300 stay finite.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}
