package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// lineReader reads typed lines.
type lineReader interface {
	// read gives the next line without its end; io.EOF at the end of input.
	read() (string, error)
	// interactive says whether a person types.
	interactive() bool
	close()
}

// lineReader edits lines on a terminal and reads them plainly elsewhere.
func (a *app) lineReader() lineReader {
	fd, isTerminal := tty.Of(a.In)
	if _, out := tty.Of(a.Out); !isTerminal || !out {
		scanner := bufio.NewScanner(a.In)
		scanner.Buffer(nil, 16<<20)
		return &plainLines{scanner}
	}
	screen := struct {
		io.Reader
		io.Writer
	}{&keys{r: a.In}, a.Out}
	t := &editedLines{fd: fd, terminal: term.NewTerminal(screen, "> ")}
	return t
}

// plainLines are the lines of a file or pipe.
type plainLines struct{ scanner *bufio.Scanner }

func (p *plainLines) read() (string, error) {
	if p.scanner.Scan() {
		return p.scanner.Text(), nil
	}
	if err := p.scanner.Err(); err != nil {
		return "", failure.Usagef("read standard input: %w", err)
	}
	return "", io.EOF
}

func (p *plainLines) interactive() bool { return false }
func (p *plainLines) close()            {}

// editedLines are lines with editing and history. The terminal is raw only while a line is read, so that Ctrl-C is a
// signal at all other times.
type editedLines struct {
	fd       int
	terminal *term.Terminal

	mu     sync.Mutex
	before *term.State // guarded by mu; what to restore, nil unless raw
}

func (e *editedLines) read() (string, error) {
	if err := e.raw(); err != nil {
		return "", err
	}
	defer e.close()
	if width, height, err := term.GetSize(e.fd); err == nil && width > 0 {
		_ = e.terminal.SetSize(width, height) // the prompt is not drawn yet, so nothing is written
	}
	e.terminal.SetBracketedPasteMode(true)
	var pasted strings.Builder // lines of a paste, which form one message with the text typed after them
	for {
		line, err := e.terminal.ReadLine()
		if !errors.Is(err, term.ErrPasteIndicator) {
			return pasted.String() + line, err
		}
		pasted.WriteString(line + "\n")
	}
}

func (e *editedLines) raw() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, err := term.MakeRaw(e.fd)
	if err != nil {
		return fmt.Errorf("set up the terminal: %w", err)
	}
	e.before = before
	return nil
}

func (e *editedLines) interactive() bool { return true }

// close restores the terminal, also under a read that is left behind.
func (e *editedLines) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.before != nil {
		e.terminal.SetBracketedPasteMode(false)
		_ = term.Restore(e.fd, e.before) // nothing to be done about a terminal that is gone
		e.before = nil
	}
}

// keys reads the input of a terminal in raw mode, and replaces Ctrl-C by keys that clear the line,
// because x/term treats Ctrl-C as the end of input.
type keys struct {
	r    io.Reader
	left []byte // read and not handed out
}

// toEnd and clearLine are Ctrl-E and Ctrl-U, which x/term's line editor knows.
const (
	interruptKey = 0x03
	toEnd        = 0x05
	clearLine    = 0x15
)

// Read implements io.Reader.
func (k *keys) Read(p []byte) (int, error) {
	if len(k.left) == 0 {
		n, err := k.r.Read(p)
		if n == 0 {
			return 0, err
		}
		k.left = bytes.ReplaceAll(p[:n:n], []byte{interruptKey}, []byte{toEnd, clearLine})
	}
	n := copy(p, k.left)
	k.left = k.left[n:]
	return n, nil
}
