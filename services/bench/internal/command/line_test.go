package command

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatusLineIsPlainWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	l := newStatusLine(&out)
	require.False(t, l.Live())
	l.Step("batch %d", 2)
	l.Update("a figure")
	l.Clear()
	require.Equal(t, "batch 2\n", out.String())
}

func TestStatusLineIsRewrittenOnATerminal(t *testing.T) {
	var out bytes.Buffer
	l := &statusLine{w: &out, live: true}
	l.Step("one")
	l.Update("two")
	l.Clear()
	l.Clear()
	require.Equal(t, "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K", out.String())
}
