package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/millrace/millrace/services/millrace/internal/render"
)

// outputs prints several continuations that arrive interleaved one after the other: the first that is not finished as
// it comes, the later ones when their turn is. Several have a head line each.
type outputs struct {
	w          io.Writer
	isTerminal bool
	all        []output
	current    int
	begun      bool  // the first head line is out
	err        error // the first of w; later writes are dropped
}

// output is one continuation.
type output struct {
	pending strings.Builder // not printed yet
	any     bool            // something was printed or is pending
	newline bool            // it ends with a line end
	done    bool
}

// newOutputs prints to w; on a terminal, control characters in the text are replaced.
func newOutputs(w io.Writer, isTerminal bool, count int) *outputs {
	return &outputs{w: w, isTerminal: isTerminal, all: make([]output, count)}
}

// text adds text to a continuation; one that was not asked for is ignored.
func (o *outputs) text(i int, text string) {
	if i >= len(o.all) || text == "" {
		return
	}
	if o.isTerminal {
		text = render.Safe(text)
	}
	o.begin()
	at := &o.all[i]
	at.any, at.newline = true, strings.HasSuffix(text, "\n")
	at.pending.WriteString(text)
	o.flush()
}

// ids adds token ids, separated by commas.
func (o *outputs) ids(i int, ids []uint32) {
	if i >= len(o.all) {
		return
	}
	for _, id := range ids {
		if o.all[i].any {
			o.text(i, ",")
		}
		o.text(i, fmt.Sprint(id))
	}
}

// finish ends a continuation: its last line is ended, and the next one's turn is.
func (o *outputs) finish(i int) {
	if i >= len(o.all) || o.all[i].done {
		return
	}
	o.begin()
	if at := &o.all[i]; !at.newline {
		at.pending.WriteString("\n")
	}
	o.all[i].done = true
	o.flush()
	for o.current < len(o.all) && o.all[o.current].done {
		o.current++
		o.head()
		o.flush()
	}
}

// begin announces the first continuation, once there is something of any: a refused request has none.
func (o *outputs) begin() {
	if !o.begun {
		o.begun = true
		o.head()
	}
}

// head announces the current continuation, if there are several.
func (o *outputs) head() {
	if len(o.all) > 1 && o.current < len(o.all) {
		gap := ""
		if o.current > 0 {
			gap = "\n"
		}
		o.write(fmt.Sprintf("%s--- %d of %d ---\n", gap, o.current+1, len(o.all)))
	}
}

// flush prints the text of the current continuation.
func (o *outputs) flush() {
	if o.current < len(o.all) {
		at := &o.all[o.current]
		o.write(at.pending.String())
		at.pending.Reset()
	}
}

func (o *outputs) write(text string) {
	if o.err == nil && text != "" {
		_, o.err = io.WriteString(o.w, text)
	}
}
