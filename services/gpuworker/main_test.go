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

// A worker whose --load names no file ends with the code that supervisors do not start again for.
func TestLoadOfMissingModelIsUsageError(t *testing.T) {
	for _, name := range []string{"nosuch", "../nosuch"} {
		var out bytes.Buffer
		args := []string{"--models", t.TempDir(), "--device", "sim", "--listen", "127.0.0.1:0", "--log-level", "error", "--load", name}
		require.Equal(t, exitUsage, run(args, &out), name)
	}
}
