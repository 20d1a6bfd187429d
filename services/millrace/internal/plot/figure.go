package plot

import (
	"bytes"
	_ "embed" // for style.css
	"encoding/xml"
	"fmt"
)

// maxTitle is how many characters of a title have room.
const maxTitle = 90

// Figure is what is drawn.
type Figure struct {
	Title string // any text; what has no room is cut
	// Energies are those of the iterations, the first one's number is 0. What is not finite, or beyond 1e300, is a gap.
	Energies []float64
	// Loads are the rows of each codeword, 0 or more, in any order.
	Loads []int64
}

// The picture's parts, in pixels.
const (
	width, height = 940, 360
	panelTop      = 84
	panelWidth    = 360
	panelHeight   = 210
	energyLeft    = 78
	loadLeft      = 526
)

// style has the colours of a light page, and of a dark one for those who prefer it. It is put into the picture as it is.
//
//go:embed style.css
var style string

// SVG returns the picture, a whole document in UTF-8.
func (f Figure) SVG() []byte {
	energies, loads := f.describeEnergies(), f.describeLoads()
	c := &canvas{}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", width, height, width, height)
	title := clip(f.Title)
	fmt.Fprintf(c, "<title>%s</title>\n<desc>Energy: %s. Loads: %s.</desc>\n", escaped(title), escaped(energies), escaped(loads))
	fmt.Fprintf(c, "<style>\n%s</style>\n", style)
	fmt.Fprintf(c, `<rect class="page" width="%d" height="%d"/>`+"\n", width, height)
	c.text(energyLeft, 30, "title", "start", title)

	c.text(energyLeft, 56, "", "start", "Energy over iterations")
	c.text(energyLeft, 74, "note", "start", energies)
	c.drawEnergies(energyLeft, f.Energies)

	c.text(loadLeft, 56, "", "start", "Rows of each codeword, most first")
	c.text(loadLeft, 74, "note", "start", loads)
	c.drawLoads(loadLeft, f.Loads)
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
