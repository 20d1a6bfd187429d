package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// begun is the line by which a process beside this one says that it has begun.
func begun(out io.Writer) error {
	_, err := fmt.Fprintln(out, "begun")
	return err
}

// errSilent: a process has not said yet that it has begun.
var errSilent = errors.New("it has not begun")

// words are what a process beside this one says: that it has begun, and what is to be known of it.
type words struct {
	begun chan struct{} // closed with the first of them
	all   bytes.Buffer  // complete when the process has ended
}

// Write implements io.Writer, for one goroutine.
func (w *words) Write(p []byte) (int, error) {
	if w.all.Len() == 0 && len(p) > 0 {
		close(w.begun)
	}
	return w.all.Write(p)
}

// rest is what was said behind the first line, by a process that has ended.
func (w *words) rest() []byte {
	_, rest, _ := bytes.Cut(w.all.Bytes(), []byte{'\n'})
	return rest
}
