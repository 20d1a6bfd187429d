package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/manpages"
	"github.com/millrace/millrace/services/internal/app"
	"github.com/millrace/millrace/services/internal/version"
)

// exit runs the command line and returns its exit code.
func exit(out io.Writer, args ...string) int {
	cmd := command(io.Discard)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	return app.ExitCode(cmd.Execute())
}

func TestHelpAndVersionAreResults(t *testing.T) {
	var out bytes.Buffer
	require.Equal(t, 0, exit(&out, "--help"))
	for _, want := range []string{"Usage:", "--device", "--engine-any-build", "Exit codes:"} {
		require.Contains(t, out.String(), want)
	}
	out.Reset()
	require.Equal(t, 0, exit(&out, "--version"))
	require.Equal(t, program+" "+version.String()+"\n", out.String())
}

func TestWrongCommandLinePrintsNoResult(t *testing.T) {
	for _, args := range [][]string{{"--frob"}, {"extra"}, {"--models", "/nowhere/at/all"}, {"--device", "abacus"}} {
		var out bytes.Buffer
		require.Equal(t, 2, exit(&out, args...), "%v", args)
		require.Empty(t, out.String(), "%v", args)
	}
}

func TestLoadOfMissingModelIsUsageError(t *testing.T) {
	// A supervisor does not restart a worker that ends with this code.
	for _, name := range []string{"nosuch", "../nosuch"} {
		var out bytes.Buffer
		require.Equal(t, 2, exit(&out, "--models", t.TempDir(), "--device", "sim", "--listen", "127.0.0.1:0", "--load", name), name)
	}
}

func TestManualPages(t *testing.T) { manpages.Check(t, command(io.Discard)) }
