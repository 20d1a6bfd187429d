package plot

import (
	"bytes"
	_ "embed" // for style.css
	"encoding/xml"
	"fmt"
)

// maxTitle is how many characters of a title have room.
const maxTitle = 90

// Figure is the input of a drawing.
type Figure struct {
	Title string // any text; what has no room is cut
	// Energies are those of the iterations, the first one's number is 0. What is not finite, or beyond 1e300, is a gap.
	Energies []float64
	// Loads are the rows of each codeword, 0 or more, in any order within a subspace: (subspaces, codewords).
	Loads     []int64
	Subspaces int // of a product codebook; 0 and 1 are a flat one
	// Variances are those of the codewords that have rows, in any order. Drawn of a flat codebook; empty: not drawn.
	Variances []float64
	// SubspaceEnergies are the energies of a product codebook's subspaces; empty: not drawn.
	SubspaceEnergies []float64
	Scatter          *Scatter // nil: not drawn
}

// The picture's parts, in pixels.
const (
	width       = 940
	panelTop    = 84
	panelWidth  = 360
	panelHeight = 210
	panelPitch  = 314 // from one row of panels to the next
	leftColumn  = 78
	rightColumn = 526
	margin      = 26 // at the bottom
)

// style has the colours of a light page and of a dark one. The picture contains it verbatim.
//
//go:embed style.css
var style string

// part is a panel to draw, and its description in words.
type part struct {
	name, summary string
	draw          func(*canvas, panel)
}

// parts returns the panels of the grid. A product codebook's histograms are below it.
func (f Figure) parts() []part {
	list := []part{{"Energy", f.describeEnergies(), func(c *canvas, p panel) { c.drawEnergies(p, f) }}}
	if product := f.subspaces() > 1; !product {
		list = append(list, part{"Loads", f.describeLoads(), func(c *canvas, p panel) { c.drawLoads(p, f) }})
		if len(f.Variances) > 0 {
			list = append(list, part{"Variances", f.describeVariances(), func(c *canvas, p panel) { c.drawVariances(p, f) }})
		}
	} else if len(f.SubspaceEnergies) > 0 {
		list = append(list, part{"Subspaces", f.describeShares(), func(c *canvas, p panel) { c.drawShares(p, f) }})
	}
	if f.Scatter != nil {
		list = append(list, part{"Scatter", f.Scatter.describe(), func(c *canvas, p panel) { c.drawScatter(p, f.Scatter) }})
	}
	return list
}

// subspaces returns the number of subspaces that have loads, at least 1.
func (f Figure) subspaces() int {
	if f.Subspaces > 1 && len(f.Loads) > 0 && len(f.Loads)%f.Subspaces == 0 {
		return f.Subspaces
	}
	return 1
}

// SVG returns the picture, a whole document in UTF-8.
func (f Figure) SVG() []byte {
	parts, s := f.parts(), f.subspaces()
	rows := (len(parts) + 1) / 2
	height := panelTop + float64(rows-1)*panelPitch + panelHeight + 40 + margin
	below := height + panelTop - 30 // where the histograms begin
	if s > 1 {
		height = below + smallHeightOf(s)
	}
	c := &canvas{}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %s" width="%d" height="%[2]s" role="img">`+"\n", width, px(height), width)
	title := clip(f.Title)
	fmt.Fprintf(c, "<title>%s</title>\n<desc>", escaped(title))
	for i, part := range parts {
		if i > 0 {
			c.WriteString(" ")
		}
		fmt.Fprintf(c, "%s: %s.", part.name, escaped(part.summary))
	}
	if s > 1 {
		fmt.Fprintf(c, " Loads: %s.", escaped(f.describeLoads()))
	}
	fmt.Fprintf(c, "</desc>\n<style>\n%s</style>\n", style)
	fmt.Fprintf(c, `<rect class="page" width="%d" height="%s"/>`+"\n", width, px(height))
	c.text(leftColumn, 30, "title", "start", title)
	for i, part := range parts {
		left := float64(leftColumn)
		if i%2 == 1 {
			left = rightColumn
		}
		part.draw(c, panel{left, panelTop + float64(i/2)*panelPitch, panelWidth, panelHeight})
	}
	if s > 1 {
		c.drawSubspaces(panel{leftColumn, below, rightColumn + panelWidth - leftColumn, smallHeight}, f)
	}
	c.WriteString("</svg>\n")
	return c.Bytes()
}

// clip cuts a text to what has room.
func clip(s string) string {
	if runes := []rune(s); len(runes) > maxTitle {
		return string(runes[:maxTitle-1]) + "…"
	}
	return s
}

// count is a number of things by their name.
func count(n int, name string) string {
	if n != 1 {
		name += "s"
	}
	return fmt.Sprintf("%d %s", n, name)
}

// escaped is a text as XML has it. Characters that XML cannot have become U+FFFD.
func escaped(s string) string {
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		return ""
	}
	return b.String()
}
