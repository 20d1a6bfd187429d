package plot

import (
	"bytes"
	"fmt"
	"strconv"
)

// canvas is a picture in the making.
type canvas struct{ bytes.Buffer }

// text writes s at a point; anchor is start, middle or end of it.
func (c *canvas) text(x, y float64, class, anchor, s string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(c, `<text%s x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, px(x), px(y), anchor, escaped(s))
}

// rule draws a straight line.
func (c *canvas) rule(class, more string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s"%s x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, more, px(x1), px(y1), px(x2), px(y2))
}

// frame draws the axes of a panel, and what they count.
func (c *canvas) frame(left float64, x, y axis, name string) {
	const bottom = panelTop + panelHeight
	for _, t := range y.ticks {
		at := bottom - y.place(t.at, panelHeight)
		c.rule("grid", "", left, at, left+panelWidth, at)
		c.text(left-8, at+4, "note", "end", t.text)
	}
	for _, t := range x.ticks {
		c.text(left+x.place(t.at, panelWidth), bottom+18, "note", "middle", t.text)
	}
	c.text(left+panelWidth/2, bottom+40, "note", "middle", name)
}

// px is a place in hundredths of a pixel.
func px(v float64) string {
	s := strconv.FormatFloat(v, 'f', 2, 64)
	for s[len(s)-1] == '0' {
		s = s[:len(s)-1]
	}
	if s[len(s)-1] == '.' {
		s = s[:len(s)-1]
	}
	if s == "-0" {
		return "0"
	}
	return s
}

// short is a number with four digits or all before its point.
func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
