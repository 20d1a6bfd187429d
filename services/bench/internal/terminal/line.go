package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// Line is a status line. Its methods may be called from any goroutine.
type Line struct {
	live  bool
	mu    sync.Mutex
	w     io.Writer
	shown bool
}

// New returns a line on w, which renews itself if w is a terminal.
func New(w io.Writer) *Line {
	f, ok := w.(*os.File)
	return &Line{w: w, live: ok && term.IsTerminal(int(f.Fd()))}
}

// Live says whether the line renews itself.
func (l *Line) Live() bool { return l.live }

// Tell shows a step of the work.
func (l *Line) Tell(format string, args ...any) {
	if l.live {
		l.Update(format, args...)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
}

// Update shows a figure that changes often; elsewhere than on a terminal it does nothing.
func (l *Line) Update(format string, args ...any) {
	if !l.live {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = true
	fmt.Fprintf(l.w, "\r\x1b[K"+format, args...)
}

// Clear takes the line away, so that a result can be printed.
func (l *Line) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shown {
		fmt.Fprint(l.w, "\r\x1b[K")
		l.shown = false
	}
}
