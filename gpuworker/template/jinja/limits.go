package jinja

// Limits bound one parsing or rendering. A zero field means its default.
type Limits struct {
	Text  int // bytes of the output, and of every other text that is made; 16 MiB
	Steps int // rounds of loops, calls, and items of the lists that are made, altogether; 1 000 000
	Depth int // of values, expressions, blocks and calls within each other, while rendering; 10 000
}

func (l Limits) withDefaults() Limits {
	if l.Text == 0 {
		l.Text = 16 << 20
	}
	if l.Steps == 0 {
		l.Steps = 1_000_000
	}
	if l.Depth == 0 {
		l.Depth = 10_000
	}
	return l
}

// maxNesting is how deep expressions and blocks may lie within each other in the source.
const maxNesting = 600

// run is one rendering under way.
type run struct {
	limits Limits
	steps  int
	depth  int
	line   int // of the evaluated node
	out    *buffer
	*library
	body str // of the block whose filters are evaluated
}

// fail ends the rendering because of an error of the template.
func (r *run) fail(format string, args ...any) { failAt(r.line, format, args...) }

// step counts rounds, calls and items.
func (r *run) step(n int) {
	if n > r.limits.Steps-r.steps {
		exceedAt(r.line, "more than %d steps", r.limits.Steps)
	}
	r.steps += n
}

// enter and leave count the depth of recursion.
func (r *run) enter() {
	if r.depth++; r.depth > r.limits.Depth {
		exceedAt(r.line, "more than %d values, blocks and calls within each other", r.limits.Depth)
	}
}

func (r *run) leave() { r.depth-- }

// room refuses a text of this many bytes before it is created.
func (r *run) room(bytes int) {
	if bytes > r.limits.Text || bytes < 0 {
		exceedAt(r.line, "a text of more than %d bytes", r.limits.Text)
	}
}

// capture returns what f outputs.
func (r *run) capture(f func()) str {
	outer := r.out
	r.out = r.buffer()
	f()
	text := r.out.str()
	r.out = outer
	return text
}
