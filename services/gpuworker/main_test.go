package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/version"
)

func TestHelpAndVersionAreResults(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, 0, run([]string{"--help"}, &out))
	for _, want := range []string{"Usage:", "--device", "--engine-any-build", "Exit codes:"} {
		require.Contains(t, out.String(), want)
	}
	out.Reset()
	require.Equal(t, 0, run([]string{"--version"}, &out))
	require.Equal(t, "millrace-worker "+version.String()+"\n", out.String())
}

func TestAWrongCommandLinePrintsNoResult(t *testing.T) {
	for _, args := range [][]string{{"--frob"}, {"extra"}, {"--models", "/nowhere/at/all"}, {"--device", "abacus"}} {
		var out bytes.Buffer
		require.Equal(t, exitUsage, run(args, &out), "%v", args)
		require.Empty(t, out.String(), "%v", args)
	}
}
