package terminal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestElsewhereThanOnATerminalStepsArePlainLines(t *testing.T) {
	var out bytes.Buffer
	l := New(&out)
	require.False(t, l.Live())
	l.Tell("batch %d", 2)
	l.Update("a figure")
	l.Clear()
	require.Equal(t, "batch 2\n", out.String())
}

func TestOnATerminalOneLineIsRenewedAndTakenAway(t *testing.T) {
	var out bytes.Buffer
	l := &Line{w: &out, live: true}
	l.Tell("one")
	l.Update("two")
	l.Clear()
	l.Clear()
	require.Equal(t, "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K", out.String())
}
