package cputest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestForcedPath(t *testing.T) {
	t.Setenv(variable, "avx2")
	require.Equal(t, "avx2", Path())
	require.Equal(t, []string{"--cpu-path", "avx2"}, Flags())
}

func TestNoForcedPath(t *testing.T) {
	t.Setenv(variable, "")
	require.Empty(t, Path())
	require.Empty(t, Flags())
}
