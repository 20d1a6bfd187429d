package app

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnEndIsWaitedForAndAHungOneIsNot(t *testing.T) {
	broken := errors.New("broken")
	require.NoError(t, within(time.Minute, func() error { return nil }))
	require.ErrorIs(t, within(time.Minute, func() error { return broken }), broken)
	hung := make(chan struct{})
	defer close(hung)
	require.ErrorIs(t, within(time.Millisecond, func() error { <-hung; return nil }), ErrHangs)
}
