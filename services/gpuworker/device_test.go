package main

import (
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNeighboursCountsTheSameProgram(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	proc := fstest.MapFS{
		"1/comm": file("systemd\n"), "20/comm": file("millrace-worker\n"), "21/comm": file("millrace-worker\n"),
		"22/comm": file("millrace-schedu\n"), "23/status": file("it ends\n"), "self/comm": file("millrace-worker\n"), "uptime": file("1\n"),
	}
	require.Equal(t, 1, neighbours(proc, 20), "the other worker, and neither this one nor its link")
	require.Equal(t, 0, neighbours(proc, 1))
	require.Equal(t, 0, neighbours(fstest.MapFS{}, 20), "no /proc")
}

func TestWithinDoesNotWaitForAHungDevice(t *testing.T) {
	broken := errors.New("broken")
	require.NoError(t, within(time.Minute, func() error { return nil }))
	require.ErrorIs(t, within(time.Minute, func() error { return broken }), broken)
	hung := make(chan struct{})
	defer close(hung)
	require.ErrorIs(t, within(time.Millisecond, func() error { <-hung; return nil }), errHangs)
}
