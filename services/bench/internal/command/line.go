package command

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// statusLine shows progress on standard error: one line that is rewritten on a terminal, plain
// lines elsewhere. It is safe for concurrent use.
type statusLine struct {
	live  bool
	mu    sync.Mutex
	w     io.Writer
	drawn bool
}

// newStatusLine returns a status line on w, which is rewritten if w is a terminal.
func newStatusLine(w io.Writer) *statusLine {
	f, ok := w.(*os.File)
	return &statusLine{w: w, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Live reports whether the line is rewritten.
func (l *statusLine) Live() bool { return l.live }

// Step shows a step of the work.
func (l *statusLine) Step(format string, args ...any) {
	if l.live {
		l.Update(format, args...)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Update shows a figure that changes often. It does nothing unless the line is rewritten.
func (l *statusLine) Update(format string, args ...any) {
	if !l.live {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn = true
	fmt.Fprintf(l.w, "\r\x1b[K"+format, args...)
}

// Clear removes the line, so that a result can be printed.
func (l *statusLine) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.drawn {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.drawn = false
	}
}
