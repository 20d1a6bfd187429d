package safetensors_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/repotest"
	"github.com/millrace/millrace/internal/safetensors"
)

// FuzzParse checks that bytes are refused with an offset inside the file, or agree with
// encoding/json, fill the file, and are unchanged after writing and reading.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := parse(data)
		if err != nil {
			var where *safetensors.FormatError
			require.ErrorAs(t, err, &where)
			require.LessOrEqual(t, where.Offset, int64(len(data)))
			return
		}
		length := 8 + binary.LittleEndian.Uint64(data)
		var described map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(data[8:length], &described))
		if raw, ok := described["__metadata__"]; ok {
			var texts map[string]string
			require.NoError(t, json.Unmarshal(raw, &texts))
			require.Equal(t, texts, file.Metadata())
			delete(described, "__metadata__")
		}
		require.Len(t, file.Tensors(), len(described))
		var sources []safetensors.Source
		var all []byte
		for _, tensor := range file.Tensors() {
			var want struct {
				DType       string   `json:"dtype"`
				Shape       []int64  `json:"shape"`
				DataOffsets [2]int64 `json:"data_offsets"`
			}
			require.NoError(t, json.Unmarshal(described[tensor.Name], &want))
			require.Equal(t, want.DType, tensor.Type.String())
			require.Equal(t, want.Shape, tensor.Shape)
			require.Equal(t, want.DataOffsets, [2]int64{tensor.Offset - int64(length), tensor.Offset - int64(length) + tensor.Size})
			content := dataOf(t, file, tensor)
			all = append(all, content...)
			sources = append(sources, source(tensor.Name, tensor.Type, content, tensor.Shape...))
		}
		require.Equal(t, data[length:], append([]byte{}, all...))

		again := written(t, file.Metadata(), sources...)
		second, err := parse(again)
		require.NoError(t, err)
		require.Len(t, second.Tensors(), len(sources))
		for _, tensor := range file.Tensors() {
			got, ok := second.Tensor(tensor.Name)
			require.True(t, ok)
			require.True(t, bytes.Equal(dataOf(t, file, tensor), dataOf(t, second, got)))
		}
		for key, text := range file.Metadata() {
			require.Equal(t, text, second.Metadata()[key])
		}
	})
}

func TestSeedCorpusIsCurrent(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":     written(t, nil),
		"codebook":  written(t, map[string]string{"kind": "FLAT", "dimension": "2"}, source("codewords", safetensors.F16, count(12), 3, 2), source("loads", safetensors.I64, count(24), 3)),
		"scalar":    written(t, nil, source("s", safetensors.BF16, count(2))),
		"no-data":   written(t, nil, source("a", safetensors.F32, nil, 0, 4), source("b", safetensors.U8, []byte{1}, 1)),
		"escapes":   fileOf(`{"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1),
		"overlap":   fileOf(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 1, 2, 3),
		"twice":     fileOf(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`),
		"surrogate": fileOf(`{"__metadata__":{"\ud800":"\udc00"}}`),
		"nested":    fileOf(`{"a":[[[[{"b":{"c":[]}}]]]]}`),
		"length":    bytes.Repeat([]byte{255}, 16),
	} {
		path := filepath.Join("testdata", "fuzz", "FuzzParse", name)
		want := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", data)
		if *repotest.Update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		}
		got, err := os.ReadFile(path)
		require.NoError(t, err, "go test ./internal/safetensors -run SeedCorpus -update writes it")
		require.Equal(t, want, string(got), name)
	}
}
