package gguf_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestTheModelDigestIsTheDocumentedEncoding(t *testing.T) {
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	w.Set("b", []uint16{1, 2})
	w.Set("a", "x")
	w.Tensor("t", gguf.F32, 2, 1)
	require.NoError(t, w.Begin())
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())

	sum := blake3.Sum256(data)
	want := (&raw{}).bytes([]byte("millrace model digest v1\x00")...).u64(2)
	want.str("a").u32(8).u64(9).str("x")
	want.str("b").u32(9).u64(4+8+4).u32(2).u64(2).bytes(1, 0, 2, 0)
	want.u64(1).str("t").u32(0).u32(2).u64(2).u64(1).bytes(sum[:]...)
	require.Equal(t, gguf.Digest(blake3.Sum256(want.b)), modelDigest(t, buf.Bytes()))
	require.Len(t, modelDigest(t, buf.Bytes()).String(), 64)
}

func TestTheModelDigestFollowsMeaningAndNotLayout(t *testing.T) {
	type tensor struct {
		name string
		data byte
	}
	build := func(alignmentGap bool, keys []string, tensors ...tensor) []byte {
		var buf bytes.Buffer
		w := gguf.NewWriter(&buf)
		for _, k := range keys {
			w.Set(k, k)
		}
		for _, x := range tensors {
			w.Tensor(x.name, gguf.I8, 4)
		}
		require.NoError(t, w.Begin())
		for _, x := range tensors {
			_, err := w.Write(bytes.Repeat([]byte{x.data}, 4))
			require.NoError(t, err)
		}
		require.NoError(t, w.Close())
		if alignmentGap {
			return append(buf.Bytes(), make([]byte, 1000)...)
		}
		return buf.Bytes()
	}
	plain := build(false, []string{"k", "l"}, tensor{"a", 1}, tensor{"b", 2})
	same := modelDigest(t, plain)
	require.Equal(t, same, modelDigest(t, build(false, []string{"l", "k"}, tensor{"b", 2}, tensor{"a", 1})), "order")
	require.Equal(t, same, modelDigest(t, build(true, []string{"k", "l"}, tensor{"a", 1}, tensor{"b", 2})), "padding")
	binary.LittleEndian.PutUint32(plain[4:], 2)
	require.Equal(t, same, modelDigest(t, plain), "version")

	require.NotEqual(t, same, modelDigest(t, build(false, []string{"k", "l"}, tensor{"a", 2}, tensor{"b", 1})), "bytes")
	require.NotEqual(t, same, modelDigest(t, build(false, []string{"k", "m"}, tensor{"a", 1}, tensor{"b", 2})), "metadata")
	require.NotEqual(t, same, modelDigest(t, build(false, []string{"k", "l"}, tensor{"a", 1}, tensor{"c", 2})), "name")
	require.NotEqual(t, same, modelDigest(t, build(false, []string{"k", "l"}, tensor{"a", 1})), "tensor gone")
}

func modelDigest(t *testing.T, data []byte) gguf.Digest {
	t.Helper()
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	var digests []gguf.Digest
	for _, tensor := range f.Tensors() {
		digests = append(digests, blake3.Sum256(f.Bytes(tensor)))
	}
	return gguf.ModelDigest(f.Metadata(), f.Tensors(), digests)
}

// BenchmarkOpenVocabulary opens a file with a vocabulary of 128 k strings and decodes it.
func BenchmarkOpenVocabulary(b *testing.B) {
	words := make([]string, 128<<10)
	for i := range words {
		words[i] = string(binary.AppendUvarint(nil, uint64(i)*7919)) + "word"
	}
	path := filepath.Join(b.TempDir(), "vocabulary.gguf")
	out, err := os.Create(path)
	require.NoError(b, err)
	w := gguf.NewWriter(out)
	w.Set("tokenizer.ggml.tokens", words)
	require.NoError(b, w.Begin())
	require.NoError(b, w.Close())
	require.NoError(b, out.Close())
	for b.Loop() {
		f, err := gguf.Open(path)
		require.NoError(b, err)
		got, _, err := f.Metadata().Strings("tokenizer.ggml.tokens")
		require.NoError(b, err)
		require.Len(b, got, len(words))
		require.NoError(b, f.Close())
	}
}
