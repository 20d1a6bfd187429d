package vectorfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/vectorfile"
)

func TestFilesAreOpenedByTheirEnding(t *testing.T) {
	rows, err := vectorfile.OpenRows(filepath.Join("testdata", "numpy", "f4.npy"))
	require.NoError(t, err)
	require.Equal(t, numbers(vectorfile.F32, -3, 12), all(t, rows.Matrix, 2))
	require.NoError(t, rows.Close())
	_, err = rows.ReadRows(make([]byte, 100), 0)
	require.ErrorIs(t, err, fs.ErrClosed)

	codes, err := vectorfile.OpenCodes(filepath.Join("testdata", "numpy", "u2.npy"))
	require.NoError(t, err)
	require.Equal(t, vectorfile.U16, codes.ElementType())
	require.NoError(t, codes.Close())
}

func TestWhatIsNoFileOfRowsIsRefusedWithItsPath(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.fvecs")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	packed := filepath.Join(dir, "base.fvecs.gz")
	require.NoError(t, os.WriteFile(packed, []byte{1}, 0o600))
	folder := filepath.Join(dir, "folder.npy")
	require.NoError(t, os.Mkdir(folder, 0o700))
	for name, tc := range map[string]struct {
		open func(string) (*vectorfile.File, error)
		path string
		kind error
		says string
	}{
		"no such file":         {vectorfile.OpenRows, filepath.Join(dir, "x.npy"), fs.ErrNotExist, "no such file"},
		"a folder":             {vectorfile.OpenRows, folder, vectorfile.ErrUnsupported, "no regular file"},
		"a pipe":               {vectorfile.OpenRows, pipe, vectorfile.ErrUnsupported, "no regular file"},
		"an unknown ending":    {vectorfile.OpenRows, packed, vectorfile.ErrUnsupported, `".gz"`},
		"codes in a float one": {vectorfile.OpenCodes, filepath.Join("testdata", "numpy", "f4.fvecs"), vectorfile.ErrUnsupported, ".npy or .ivecs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.open(tc.path)
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.path)
			require.ErrorContains(t, err, tc.says)
		})
	}
}
