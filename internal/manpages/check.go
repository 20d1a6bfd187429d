package manpages

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var folder = flag.String("manpages", "", "absolute path of a folder to write the manual pages to, as PROGRAM/NAME.1")

// Check renders the manual page of root and of each command below it, and fails if a command has no
// summary. With -manpages it writes the pages.
func Check(t *testing.T, root *cobra.Command) {
	t.Helper()
	pages := map[string]string{}
	add(t, pages, root)
	if *folder == "" {
		return
	}
	dir := filepath.Join(*folder, root.Name())
	require.NoError(t, os.MkdirAll(dir, 0o750))
	for name, text := range pages {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// add renders the page of a command and the pages of its subcommands.
func add(t *testing.T, pages map[string]string, c *cobra.Command) {
	t.Helper()
	require.NotEmpty(t, c.Short, "%s has no summary", c.CommandPath())
	c.InitDefaultHelpFlag()
	pages[pageName(c)+".1"] = page(c)
	for _, s := range subcommands(c) {
		add(t, pages, s)
	}
}
