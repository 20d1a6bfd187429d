package gguf_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestTheWriterTakesDataInPiecesOfAnySize(t *testing.T) {
	write := func(piece int) []byte {
		var buf bytes.Buffer
		w := gguf.NewWriter(&buf)
		w.Set("k", "v")
		w.Tensor("a", gguf.I8, 33)
		w.Tensor("b", gguf.I8, 32)
		w.Tensor("c", gguf.F32, 1)
		require.NoError(t, w.Begin())
		for data := bytes.Repeat([]byte{1, 2, 3}, 23); len(data) > 0; {
			n := min(piece, len(data))
			wrote, err := w.Write(data[:n])
			require.NoError(t, err)
			require.Equal(t, n, wrote)
			data = data[n:]
		}
		require.NoError(t, w.Close())
		return buf.Bytes()
	}
	want := write(69)
	for _, piece := range []int{1, 2, 7, 33, 34, 65, 68} {
		require.Equal(t, want, write(piece), "pieces of %d", piece)
	}
	f, err := gguf.Parse(want)
	require.NoError(t, err)
	c, _ := f.Tensor("c")
	require.Equal(t, []byte{3, 1, 2, 3}, f.Bytes(c))
}

func TestTheWriterRefusesMisuse(t *testing.T) {
	for name, use := range map[string]func(w *gguf.Writer){
		"a key twice":              func(w *gguf.Writer) { w.Set("k", "v"); w.Set("k", "v") },
		"an empty key":             func(w *gguf.Writer) { w.Set("", "v") },
		"a value of no type":       func(w *gguf.Writer) { w.Set("k", 1) },
		"a mixed array":            func(w *gguf.Writer) { w.Set("k", gguf.ArrayOf{Elem: gguf.Int8, Items: []any{int8(1), "x"}}) },
		"a bad alignment":          func(w *gguf.Writer) { w.Set("general.alignment", uint32(33)) },
		"a late alignment":         func(w *gguf.Writer) { w.Tensor("a", gguf.I8, 1); w.Set("general.alignment", uint32(64)) },
		"a tensor twice":           func(w *gguf.Writer) { w.Tensor("a", gguf.I8, 1); w.Tensor("a", gguf.I8, 1) },
		"a tensor without a name":  func(w *gguf.Writer) { w.Tensor("", gguf.I8, 1) },
		"half a block":             func(w *gguf.Writer) { w.Tensor("a", gguf.Q4K, 128) },
		"two tensors of 2^62":      func(w *gguf.Writer) { w.Tensor("a", gguf.I8, 1<<62); w.Tensor("b", gguf.I8, 1<<62) },
		"data before the header":   func(w *gguf.Writer) { _, _ = w.Write([]byte{1}) },
		"a header twice":           func(w *gguf.Writer) { _ = w.Begin(); _ = w.Begin() },
		"metadata after data":      func(w *gguf.Writer) { _ = w.Begin(); w.Set("k", "v") },
		"a tensor after data":      func(w *gguf.Writer) { _ = w.Begin(); w.Tensor("a", gguf.I8, 1) },
		"more data than described": func(w *gguf.Writer) { _ = w.Begin(); _, _ = w.Write([]byte{1}) },
		"less data than described": func(w *gguf.Writer) { w.Tensor("a", gguf.I8, 2); _ = w.Begin(); _, _ = w.Write([]byte{1}) },
		"no header":                func(*gguf.Writer) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := gguf.NewWriter(&bytes.Buffer{})
			use(w)
			require.ErrorIs(t, w.Close(), gguf.ErrWriter)
		})
	}
}

type full struct{}

var errFull = errors.New("disk full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestAFailingFileFailsTheWriter(t *testing.T) {
	w := gguf.NewWriter(full{})
	w.Tensor("a", gguf.I8, 1<<20)
	_ = w.Begin()
	_, err := w.Write(make([]byte, 1<<20))
	require.ErrorIs(t, err, errFull)
	require.ErrorIs(t, w.Close(), errFull)
}
