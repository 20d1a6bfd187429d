package scripttest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
)

// Run runs each text file of the package's testdata. play returns the file with the actual results.
func Run(t *testing.T, play func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := play(t, string(text))
			if *repotest.Update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Equal(t, string(text), got, "run with -update if the change is meant")
		})
	}
}
