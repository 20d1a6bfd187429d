package template

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBinaryThatCannotHostChildrenIsReported(t *testing.T) {
	hosted.Store(false)
	defer hosted.Store(true)
	_, err := New("a", Options{})
	require.ErrorIs(t, err, ErrChild)
	require.ErrorContains(t, err, "MaybeChild")
}
