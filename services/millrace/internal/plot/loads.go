package plot

import (
	"fmt"
	"slices"
	"strconv"
)

// maxBars is how many bars have room: one on every second pixel.
const maxBars = panelWidth / 2

func (f Figure) describeLoads() string {
	k := len(f.Loads)
	if k == 0 {
		return "none recorded"
	}
	empty := 0
	for _, n := range f.Loads {
		if n <= 0 {
			empty++
		}
	}
	return fmt.Sprintf("%s, %d empty, largest %d, mean %s", count(k, "codeword"), empty, max(0, slices.Max(f.Loads)), short(mean(sorted(f.Loads))))
}

func (c *canvas) drawLoads(left float64, loads []int64) {
	if len(loads) == 0 {
		return
	}
	const bottom = panelTop + panelHeight
	descending := sorted(loads)
	each := (len(loads) + maxBars - 1) / maxBars
	bars := barsOf(descending, each)
	average := mean(descending)
	x := newAxis(0, float64(len(loads)), 1)
	y := newAxis(0, max(1, bars[0], average), 0)
	name := "codewords"
	if each > 1 {
		name = fmt.Sprintf("codewords; a bar is the mean of %d", each)
	}
	c.frame(left, x, y, name)
	c.WriteString(`<path class="bar" d="`)
	for i, v := range bars {
		from := left + x.place(float64(i*each), panelWidth)
		to := left + x.place(float64(min((i+1)*each, len(loads))), panelWidth)
		// A gap of a tenth between bars.
		gap := (to - from) / 10
		if top := bottom - y.place(v, panelHeight); v > 0 {
			c.WriteString("M" + px(from) + " " + strconv.Itoa(bottom) + "V" + px(top) + "H" + px(to-gap) + "V" + strconv.Itoa(bottom) + "z")
		}
	}
	c.WriteString(`"/>` + "\n")
	at := bottom - y.place(average, panelHeight)
	c.rule("mean", ` stroke-width="1.5" stroke-dasharray="5 4"`, left, at, left+panelWidth, at)
}

// sorted returns the loads, most first.
func sorted(loads []int64) []int64 {
	descending := slices.Clone(loads)
	slices.Sort(descending)
	slices.Reverse(descending)
	return descending
}

// barsOf returns the heights of the bars, the means of each neighbouring loads; the last one may be of fewer.
func barsOf(descending []int64, each int) []float64 {
	var bars []float64
	for part := range slices.Chunk(descending, each) {
		bars = append(bars, mean(part))
	}
	return bars
}

func mean(loads []int64) float64 {
	sum := 0.0
	for _, n := range loads {
		sum += float64(max(0, n))
	}
	return sum / float64(len(loads))
}
