package command

import (
	"io"
	"testing"

	"github.com/millrace/millrace/internal/manpages"
)

func TestManualPages(t *testing.T) {
	c := &console{out: io.Discard, err: io.Discard, line: newStatusLine(io.Discard)}
	manpages.Check(t, c.root())
}
