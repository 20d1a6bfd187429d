package plot

import (
	"bytes"
	"fmt"
	"strconv"
)

// canvas is a picture in the making.
type canvas struct{ bytes.Buffer }

// panel is a rectangle of the picture in which data are drawn, in pixels.
type panel struct{ left, top, width, height float64 }

func (p panel) bottom() float64 { return p.top + p.height }
func (p panel) right() float64  { return p.left + p.width }

// x and y return where a value lies in the picture.
func (p panel) x(a axis, v float64) float64 { return p.left + a.place(v, p.width) }
func (p panel) y(a axis, v float64) float64 { return p.bottom() - a.place(v, p.height) }

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

// path draws a path; more are further attributes, which begin with a space.
func (c *canvas) path(class, more, d string) {
	fmt.Fprintf(c, `<path class="%s"%s d="%s"/>`+"\n", class, more, d)
}

// heading writes the title of a panel and a summary above it.
func (c *canvas) heading(p panel, name, summary string) {
	c.text(p.left, p.top-28, "", "start", name)
	c.text(p.left, p.top-10, "note", "start", summary)
}

// frame draws the axes of a panel, and what they count.
func (c *canvas) frame(p panel, x, y axis, name string) {
	for _, t := range y.ticks {
		at := p.y(y, t.at)
		c.rule("grid", "", p.left, at, p.right(), at)
		c.text(p.left-8, at+4, "note", "end", t.text)
	}
	for _, t := range x.ticks {
		c.text(p.x(x, t.at), p.bottom()+18, "note", "middle", t.text)
	}
	c.text(p.left+p.width/2, p.bottom()+40, "note", "middle", name)
}

// px is a place in hundredths of a pixel.
func px(v float64) string { return digits(v, 2) }

// digits is a number with at most n digits behind its point.
func digits(v float64, n int) string {
	s := strconv.FormatFloat(v, 'f', n, 64)
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
