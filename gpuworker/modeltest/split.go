package modeltest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// Split writes the model at from as a split model: parts of these numbers of tensors, then a part
// with the rest, in the folder to and with the prefix name. Metadata and keys are placed as
// llama.cpp's gguf-split places them. A first part of 0 tensors is its --no-tensor-first-split. Split
// returns the paths of the parts.
func Split(t testing.TB, from, to, name string, tensors ...int) (paths []string) {
	t.Helper()
	source, err := gguf.Open(from)
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	rest := source.Tensors()
	count := len(tensors) + 1
	for i := range count {
		part := rest
		if i < len(tensors) {
			part = rest[:tensors[i]]
		}
		rest = rest[len(part):]
		path := filepath.Join(to, gguf.PartName(name, i+1, count))
		paths = append(paths, path)
		out, err := os.Create(path)
		require.NoError(t, err)
		w := gguf.NewWriter(out)
		if i == 0 {
			require.NoError(t, copyMetadata(w, source.Metadata()))
		}
		w.Set("split.no", uint16(i))
		w.Set("split.count", uint16(count))
		w.Set("split.tensors.count", int32(len(source.Tensors())))
		for _, x := range part {
			w.Tensor(x.Name, x.Type, x.Dims...)
		}
		require.NoError(t, w.Begin())
		for _, x := range part {
			_, err := w.Write(source.Bytes(x))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		require.NoError(t, out.Close())
	}
	return paths
}
