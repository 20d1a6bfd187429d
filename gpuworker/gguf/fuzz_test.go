package gguf_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/internal/repotest"
)

// FuzzParse asks that any bytes are refused with an offset inside the file, or give a File whose
// every promise holds.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			var where *gguf.FormatError
			require.ErrorAs(t, err, &where)
			require.LessOrEqual(t, where.Offset, uint64(len(data)))
			return
		}
		m := file.Metadata()
		for _, key := range m.Keys() {
			_, ok := m.Value(key)
			require.True(t, ok)
			_, _, _ = m.String(key)
			_, _, _ = m.Uint(key)
			_, _, _ = m.Int(key)
			_, _, _ = m.Float(key)
			_, _, _ = m.Bool(key)
			_, _, _ = m.Strings(key)
			_, _, _ = m.Ints(key)
			_, _, _ = m.Floats(key)
			_, _, _ = m.Bools(key)
		}
		for _, tensor := range file.Tensors() {
			require.Zero(t, tensor.Offset%file.Alignment())
			require.Len(t, file.Bytes(tensor), int(tensor.Size))
			require.Equal(t, tensor.Size, tensor.Elements()/tensor.Type.BlockSize()*tensor.Type.BlockBytes())
			found, ok := file.Tensor(tensor.Name)
			require.True(t, ok)
			require.Equal(t, tensor, found)
		}
		gguf.ModelDigest(m, file.Tensors(), make([]gguf.Digest, len(file.Tensors())))
		require.NoError(t, file.Close())
	})
}

func TestTheSeedCorpusIsWhatTheWriterWrites(t *testing.T) {
	whole := everything(t)
	two := append([]byte(nil), whole...)
	two[4] = 2
	for name, data := range map[string][]byte{
		"every-metadata-type": whole,
		"version-two":         two,
		"cut-in-the-header":   whole[:len(whole)/2],
		"no-tensors":          file(0, 1).str("k").u32(8).str("v").b,
		"empty":               file(0, 0).b,
		"nested-arrays":       file(0, 1).str("k").u32(9).u32(9).u64(2).u32(0).u64(1).bytes(5).u32(8).u64(1).str("s").b,
		"many-strings":        file(0, 1).str("k").u32(9).u32(8).u64(1 << 40).str("s").str("t").b,
		"removed-type":        file(1, 0).tensor("x", 31, 0, 32).data(32).b,
		"trailing-ones":       file(1, 0).tensor("x", gguf.F16, 0, 8, 1, 1, 1).data(32).b,
		"vocabulary":          file(0, 2).str("tokenizer.ggml.model").u32(8).str("no_vocab").str("tokenizer.ggml.tokens").u32(9).u32(8).u64(1).str("a").b,
		"suppressed-tokens":   file(0, 1).str("tokenizer.ggml.suppress_tokens").u32(9).u32(5).u64(2).u32(7).u32(1<<32 - 1).b,
		"part":                file(0, 3).str("split.no").u32(2).bytes(0, 0).str("split.count").u32(2).bytes(2, 0).str("split.tensors.count").u32(5).u32(7).b,
		"overlap":             file(2, 0).tensor("x", gguf.F32, 0, 9).tensor("y", gguf.BF16, 32, 8).data(64).b,
	} {
		path := filepath.Join("testdata", "fuzz", "FuzzParse", name)
		want := fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", data)
		if *repotest.Update {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		}
		got, err := os.ReadFile(path)
		require.NoError(t, err, "go test ./gpuworker/gguf -run SeedCorpus -update writes it")
		require.Equal(t, want, string(got), name)
	}
}
