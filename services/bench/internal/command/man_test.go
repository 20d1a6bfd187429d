package command

import (
	"io"
	"testing"

	"github.com/millrace/millrace/internal/manpages"
	"github.com/millrace/millrace/services/bench/internal/terminal"
)

func TestTheManualPagesAreCurrent(t *testing.T) {
	c := &console{out: io.Discard, err: io.Discard, line: terminal.New(io.Discard)}
	manpages.Compare(t, c.root())
}
