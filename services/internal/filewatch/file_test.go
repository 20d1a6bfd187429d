package filewatch_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/internal/filewatch"
)

func TestFileReadsUpToMaxBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"", "abc\n", strings.Repeat("a", filewatch.MaxBytes)} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		got, err := filewatch.File(path)
		require.NoError(t, err)
		require.Equal(t, sha256.Sum256([]byte(text)), sha256.Sum256([]byte(got)), "%d bytes of %d", len(got), len(text))
	}
	require.NoError(t, os.Truncate(path, filewatch.MaxBytes+1))
	_, err := filewatch.File(path)
	require.ErrorContains(t, err, path+" has more than")
}

func TestFileRefusesPipesAndDevices(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, dir, os.DevNull, filepath.Join(dir, "gone")} {
		_, err := filewatch.File(path)
		require.ErrorContains(t, err, path)
	}
}
