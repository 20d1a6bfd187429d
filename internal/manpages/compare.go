package manpages

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/modeltest"
	"github.com/millrace/millrace/internal/updating"
)

// Compare fails unless docs/man/PROGRAM has just the pages of a program and its commands, NAME.1 and NAME-COMMAND.1; with -update it
// writes them.
func Compare(t *testing.T, root *cobra.Command) {
	t.Helper()
	kept, want := folder(root.Name()), map[string]string{}
	add(want, root)
	if *updating.Wanted {
		require.NoError(t, os.RemoveAll(kept))
		require.NoError(t, os.MkdirAll(kept, 0o750))
		for name, text := range want {
			require.NoError(t, os.WriteFile(filepath.Join(kept, name), []byte(text), 0o600))
		}
	}
	require.Equal(t, want, pages(t, kept), "the same test with -update writes docs/man")
}

// add makes the pages of a command and those below it.
func add(to map[string]string, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	to[pageName(c)+".1"] = page(c)
	for _, s := range shown(c) {
		add(to, s)
	}
}

func folder(program string) string {
	return modeltest.Path("docs/man/" + program)
}

// pages are the texts in a folder, by name.
func pages(t *testing.T, in string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := os.ReadDir(in)
	require.NoError(t, err, "the same test with -update writes docs/man")
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(in, f.Name()))
		require.NoError(t, err)
		all[f.Name()] = string(text)
	}
	require.NotEmpty(t, all)
	return all
}
