package modeltest

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// WithMetadata writes a copy of a stories model file with changed metadata. A nil value removes its
// key. Tensors are unchanged.
func WithMetadata(t testing.TB, from, to string, metadata map[string]any) {
	t.Helper()
	WithTensors(t, from, to, metadata, nil)
}

// Tensor is a tensor for WithTensors.
type Tensor struct {
	Name  string
	Type  gguf.Type
	Dims  []uint64
	Bytes []byte
}

// WithTensors is WithMetadata with more tensors.
func WithTensors(t testing.TB, from, to string, metadata map[string]any, more []Tensor) {
	t.Helper()
	source, err := gguf.Open(from)
	require.NoError(t, err)
	defer func() { require.NoError(t, source.Close()) }()
	out, err := os.Create(to)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Close()) }()
	w := gguf.NewWriter(out)
	for _, key := range source.Metadata().Keys() {
		if _, changed := metadata[key]; changed {
			continue
		}
		v, err := value(source.Metadata(), key)
		require.NoError(t, err)
		w.Set(key, v)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if v := metadata[key]; v != nil {
			w.Set(key, v)
		}
	}
	for _, x := range source.Tensors() {
		w.Tensor(x.Name, x.Type, x.Dims...)
	}
	for _, x := range more {
		w.Tensor(x.Name, x.Type, x.Dims...)
	}
	require.NoError(t, w.Begin())
	for _, x := range source.Tensors() {
		_, err := w.Write(source.Bytes(x))
		require.NoError(t, err)
	}
	for _, x := range more {
		_, err := w.Write(x.Bytes)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
}
