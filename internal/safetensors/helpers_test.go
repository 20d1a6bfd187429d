package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/safetensors"
)

// fileOf returns a file of a header and data.
func fileOf(header string, data ...byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
}

func parse(data []byte) (*safetensors.File, error) {
	return safetensors.Parse(bytes.NewReader(data), int64(len(data)))
}

func written(t testing.TB, metadata map[string]string, sources ...safetensors.Source) []byte {
	t.Helper()
	var file bytes.Buffer
	require.NoError(t, safetensors.Write(&file, metadata, sources))
	return file.Bytes()
}

func source(name string, e safetensors.Type, data []byte, shape ...int64) safetensors.Source {
	return safetensors.Source{Name: name, Type: e, Shape: shape, Data: bytes.NewReader(data)}
}

func dataOf(t testing.TB, f *safetensors.File, tensor safetensors.Tensor) []byte {
	t.Helper()
	b, err := io.ReadAll(f.Data(tensor))
	require.NoError(t, err)
	require.Len(t, b, int(tensor.Size))
	return b
}
