package plot

import (
	"fmt"
	"strings"
)

// The histograms of a product codebook's subspaces, in pixels.
const (
	maxSmall               = 64 // histograms, for the size of the picture
	maxSmallBars           = 32 // of each
	smallHeight            = 52
	smallPitch             = 80 // from one row of histograms to the next
	smallColumns, smallGap = 8, 12
)

// smallHeightOf is how much of the picture the histograms of s subspaces take.
func smallHeightOf(s int) float64 {
	return float64((min(s, maxSmall) + smallColumns - 1) / smallColumns * smallPitch)
}

// drawSubspaces draws the rows of each codeword of a product codebook, a histogram for each subspace. All have one scale, so that their
// heights compare.
func (c *canvas) drawSubspaces(p panel, f Figure) {
	s := f.subspaces()
	k := len(f.Loads) / s
	shown := min(s, maxSmall)
	summary := f.describeLoads()
	if shown < s {
		summary += fmt.Sprintf("; subspaces 0 to %d are drawn", shown-1)
	}
	c.heading(p, "Rows of each codeword in each subspace, most first", summary)
	each := (k + maxSmallBars - 1) / maxSmallBars
	all := make([][]float64, shown)
	high := 1.0
	for i := range all {
		all[i] = barsOf(descending(heights(f.Loads[i*k:(i+1)*k])), each)
		high = max(high, all[i][0])
	}
	y := newRoundAxis(0, high)
	width := (p.width+smallGap)/smallColumns - smallGap
	var bars, means strings.Builder
	for i, loads := range all {
		small := panel{p.left + float64(i%smallColumns)*(width+smallGap), p.top + 14 + float64(i/smallColumns)*smallPitch, width, smallHeight}
		c.text(small.left, small.top-3, "note", "start", fmt.Sprintf("subspace %d", i))
		if i%smallColumns == 0 {
			last := min(smallColumns, shown-i) - 1
			for _, t := range []tick{y.ticks[0], y.ticks[len(y.ticks)-1]} {
				at := small.y(y, t.at)
				c.rule("grid", "", small.left, at, small.right()+float64(last)*(width+smallGap), at)
				c.text(small.left-8, at+4, "note", "end", t.text)
			}
		}
		x := newAxis(0, float64(len(loads)), 1)
		bottom := digits(small.bottom(), 1)
		bars.WriteString("M" + digits(small.left, 1) + " " + bottom)
		for j, v := range loads {
			bars.WriteString("V" + digits(small.y(y, v), 1) + "H" + digits(small.x(x, float64(j+1)), 1))
		}
		bars.WriteString("V" + bottom + "z")
		at := small.y(y, mean(heights(f.Loads[i*k:(i+1)*k])))
		means.WriteString("M" + px(small.left) + " " + px(at) + "H" + px(small.right()))
	}
	c.path("bar", "", bars.String())
	c.path("mean", ` fill="none" stroke-dasharray="3 3"`, means.String())
}
