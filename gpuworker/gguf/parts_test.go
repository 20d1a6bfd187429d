package gguf_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/internal/repotest"
)

// splitKeys sets the keys of a part as llama.cpp's gguf-split does.
func splitKeys(w *gguf.Writer, number, count, tensors int) {
	w.Set("split.no", uint16(number))
	w.Set("split.count", uint16(count))
	w.Set("split.tensors.count", int32(tensors))
}

// written is a file with what set sets and these tensors of 32 bytes, filled with a letter of their
// names.
func written(t testing.TB, set func(w *gguf.Writer), tensors ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	set(w)
	for _, name := range tensors {
		w.Tensor(name, gguf.I8, 32)
	}
	require.NoError(t, w.Begin())
	for _, name := range tensors {
		_, err := w.Write(bytes.Repeat([]byte{name[0]}, 32))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return buf.Bytes()
}

func modelKeys(w *gguf.Writer) {
	w.Set("general.architecture", "llama")
	w.Set("llama.block_count", uint32(2))
}

// splitModel is a model and its three parts, the first without tensors and of another alignment.
func splitModel(t testing.TB) (whole []byte, parts [][]byte) {
	t.Helper()
	whole = written(t, func(w *gguf.Writer) { w.Set("general.alignment", uint32(64)); modelKeys(w) }, "a", "b", "c")
	return whole, [][]byte{
		written(t, func(w *gguf.Writer) { w.Set("general.alignment", uint32(64)); modelKeys(w); splitKeys(w, 0, 3, 3) }),
		written(t, func(w *gguf.Writer) { splitKeys(w, 1, 3, 3) }, "a", "b"),
		written(t, func(w *gguf.Writer) { splitKeys(w, 2, 3, 3) }, "c"),
	}
}

func TestPartNames(t *testing.T) {
	for name, want := range map[string]string{
		"m-00001-of-00003.gguf":                "m 1 3",
		"a-b.Q4_K_M-00012-of-01000":            "",
		"m-00002-of-00002.gguf":                "m 2 2",
		"m-00001-of-00001.gguf":                "", // a whole model
		"m-00000-of-00003.gguf":                "",
		"m-00004-of-00003.gguf":                "",
		"m-1-of-3.gguf":                        "",
		"m-00001-of-00003.GGUF":                "",
		"-00001-of-00003.gguf":                 "",
		"m-000001-of-00003.gguf":               "",
		"m-00001-of-00002-00001-of-00003.gguf": "m-00001-of-00002 1 3",
		"m.gguf":                               "",
	} {
		got := ""
		if prefix, number, count, ok := gguf.ParsePartName(name); ok {
			got = fmt.Sprint(prefix, " ", number, " ", count)
			require.Equal(t, name, gguf.PartName(prefix, number, count))
		}
		require.Equal(t, want, got, name)
	}
}

func TestPartsAreOneModel(t *testing.T) {
	// The digest of the parts is that of the whole file, and every tensor is read from its part.
	whole, parts := splitModel(t)
	dir, size := t.TempDir(), 0
	for i, data := range parts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, gguf.PartName("m", i+1, 3)), data, 0o600))
		size += len(data)
	}
	f, err := gguf.Open(filepath.Join(dir, "m-00001-of-00003.gguf"))
	require.NoError(t, err)
	require.EqualValues(t, size, f.Size())
	require.Equal(t, []string{"general.alignment", "general.architecture", "llama.block_count"}, f.Metadata().Keys())
	_, has := f.Metadata().Value("split.count")
	require.False(t, has)
	var digests []gguf.Digest
	for i, name := range []string{"a", "b", "c"} {
		tensor, ok := f.Tensor(name)
		require.True(t, ok)
		require.Equal(t, f.Tensors()[i], tensor)
		require.Equal(t, []int{1, 1, 2}[i], tensor.Part)
		require.Equal(t, strings.Repeat(name, 32), string(f.Bytes(tensor)))
		read := make([]byte, 30)
		require.NoError(t, f.ReadAt(tensor, read, 2))
		require.Equal(t, strings.Repeat(name, 30), string(read))
		require.ErrorContains(t, f.ReadAt(tensor, read, 3), "outside")
		digests = append(digests, blake3.Sum256(f.Bytes(tensor)))
	}
	require.Equal(t, modelDigest(t, whole), gguf.ModelDigest(f.Metadata(), f.Tensors(), digests))

	last := f.Tensors()[2]
	require.Nil(t, f.Bytes(gguf.Tensor{Part: 3, Size: 1}))
	require.Nil(t, f.Bytes(gguf.Tensor{Part: -1, Size: 1}))
	require.NoError(t, os.Truncate(filepath.Join(dir, gguf.PartName("m", 3, 3)), 64))
	err = f.ReadAt(last, make([]byte, 32), 0)
	require.ErrorIs(t, err, gguf.ErrFault)
	require.ErrorContains(t, err, "tensor c: part 3 of 3 ends or fails")
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Nil(t, f.Bytes(last))
	require.ErrorIs(t, f.ReadAt(last, make([]byte, 1), 0), gguf.ErrClosed)
}

func TestOpenRefusesIncompleteParts(t *testing.T) {
	_, parts := splitModel(t)
	dir := t.TempDir()
	path := func(number int) string { return filepath.Join(dir, gguf.PartName("m", number, 3)) }
	require.NoError(t, os.WriteFile(path(1), parts[0], 0o600))
	_, err := gguf.Open(path(1))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "m-00002-of-00003.gguf")
	require.ErrorContains(t, err, "all 3 parts must be in one folder")
	_, err = gguf.Open(path(2))
	require.ErrorIs(t, err, gguf.ErrFormat)
	require.ErrorContains(t, err, "part 2 of a split model: give its first part, m-00001-of-00003.gguf")
	_, err = gguf.Open(filepath.Join(dir, "m-00001-of-01001.gguf"))
	require.ErrorIs(t, err, gguf.ErrUnsupported)
	require.ErrorContains(t, err, "split into 1001 files, want at most 1000: merge")
	require.NoError(t, os.WriteFile(path(2), nil, 0o600))
	require.NoError(t, os.WriteFile(path(3), parts[2], 0o600))
	_, err = gguf.Open(path(1))
	require.ErrorIs(t, err, gguf.ErrFormat)
	require.ErrorContains(t, err, `part 2 of 3, file "m-00002-of-00003.gguf": not a valid gguf file: offset 0: the file is empty`)
	_, err = gguf.OpenParts(make([]*os.File, 1001))
	require.ErrorIs(t, err, gguf.ErrUnsupported)
}

func TestPartsOfDifferentModelsAreRefused(t *testing.T) {
	first := func(tensors int) []byte {
		return written(t, func(w *gguf.Writer) { modelKeys(w); splitKeys(w, 0, 2, tensors) }, "a")
	}
	second := func(set func(w *gguf.Writer), tensors ...string) [][]byte {
		return [][]byte{first(2), written(t, set, tensors...)}
	}
	good := second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 2) }, "b")
	_, err := gguf.ParseParts(good...)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		parts [][]byte
		want  []string
	}{
		"the files were exchanged": {[][]byte{good[1], good[0]}, []string{"part 1 of 2", "split.no is 1 and the file's name says 0", "download"}},
		"the same part twice":      {[][]byte{good[0], good[0]}, []string{`part 2 of 2, file "part1"`, "split.no is 0 and the file's name says 1"}},
		"another count":            {second(func(w *gguf.Writer) { splitKeys(w, 1, 3, 2) }, "b"), []string{"part 2 of 2", "split.count is 3 and the file's name says 2"}},
		"a whole model":            {[][]byte{written(t, modelKeys, "a"), good[1]}, []string{"part 1 of 2", "split.count is missing", "rename it"}},
		"no number":                {second(func(w *gguf.Writer) { w.Set("split.count", uint16(2)) }, "b"), []string{"part 2 of 2", "split.no is missing"}},
		"a number in words":        {second(func(w *gguf.Writer) { w.Set("split.count", "2") }, "b"), []string{"part 2 of 2", "split.count is string"}},
		"a negative count":         {second(func(w *gguf.Writer) { w.Set("split.count", int32(-2)) }, "b"), []string{"part 2 of 2", "split.count is int32"}},
		"no count of tensors": {
			[][]byte{written(t, func(w *gguf.Writer) { w.Set("split.count", uint16(2)); w.Set("split.no", uint16(0)) }, "a"), good[1]},
			[]string{"part 1 of 2", "split.tensors.count is missing"},
		},
		"two counts of tensors": {second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 3) }, "b"), []string{"part 2 of 2", "split.tensors.count is 3, in part 1 it is 2"}},
		"a tensor too few":      {[][]byte{first(3), written(t, func(w *gguf.Writer) { splitKeys(w, 1, 2, 3) }, "b")}, []string{"the 2 parts have 2 tensors, and metadata split.tensors.count is 3"}},
		"a tensor twice":        {second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 2) }, "a"), []string{"part 2 of 2", `tensor "a" is in part 1, too`}},
		"another architecture": {
			second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 2); w.Set("general.architecture", "qwen2") }, "b"),
			[]string{"part 2 of 2", `general.architecture is "qwen2", and part 1 has "llama"`, "different models"},
		},
		"another size": {
			second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 2); w.Set("llama.block_count", uint32(3)) }, "b"),
			[]string{"part 2 of 2", "llama.block_count is 3, and part 1 has 2"},
		},
		"a key that the first lacks": {
			second(func(w *gguf.Writer) { splitKeys(w, 1, 2, 2); w.Set("llama.rope.freq_base", float32(1)) }, "b"),
			[]string{"part 2 of 2", "llama.rope.freq_base is of type float32, and part 1 has no such key"},
		},
		"a part cut short":        {[][]byte{good[0], good[1][:len(good[1])-1]}, []string{"part 2 of 2", `truncated: tensor "b"`, "download or copy it again"}},
		"a part that is no model": {[][]byte{good[0], []byte("<html><body>404")}, []string{"part 2 of 2", "web page"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gguf.ParseParts(tc.parts...)
			require.ErrorIs(t, err, gguf.ErrFormat)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	// What the first part says, a later one may repeat.
	_, err = gguf.ParseParts(second(func(w *gguf.Writer) { modelKeys(w); splitKeys(w, 1, 2, 2) }, "b")...)
	require.NoError(t, err)
}

func TestDigestIgnoresTheDivision(t *testing.T) {
	// llama-gguf-split --merge leaves the keys in the merged file, with a count of 0.
	plain := written(t, modelKeys, "a", "b")
	merged := written(t, func(w *gguf.Writer) { modelKeys(w); splitKeys(w, 0, 0, 2) }, "a", "b")
	require.Equal(t, modelDigest(t, plain), modelDigest(t, merged))
	other := written(t, func(w *gguf.Writer) { modelKeys(w); w.Set("split.other", uint16(1)) }, "a", "b")
	require.NotEqual(t, modelDigest(t, plain), modelDigest(t, other))
}

func TestDigestOfTheShippedModelStays(t *testing.T) {
	// Clients keep digests: they must be the same in every version.
	data, err := os.ReadFile(repotest.Path("testdata/models/stories-5m-q8_0.gguf"))
	require.NoError(t, err)
	require.Equal(t, "52776c28f793e3b1a0a9cfab16fbe49532bf0424db8119d9d47d1c4c2c4c5dd0", modelDigest(t, data).String())
}

// FuzzParts asks that two files of any bytes are refused, or are one model whose tensors can be
// read.
func FuzzParts(f *testing.F) {
	_, parts := splitModel(f)
	f.Add(parts[0], parts[1])
	two := func(number int, set func(w *gguf.Writer), tensors ...string) []byte {
		return written(f, func(w *gguf.Writer) { set(w); splitKeys(w, number, 2, 2) }, tensors...)
	}
	none := func(*gguf.Writer) {}
	f.Add(two(0, modelKeys, "a"), two(1, none, "b"))
	f.Add(two(0, modelKeys), two(1, modelKeys, "a", "b"))
	f.Add(two(0, modelKeys, "a"), two(1, none, "a"))
	f.Add(two(1, none, "b"), two(0, modelKeys, "a"))
	f.Add(two(0, modelKeys, "a"), written(f, func(w *gguf.Writer) { w.Set("split.count", []uint16{2}) }, "b"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		file, err := gguf.ParseParts(first, second)
		if err != nil {
			require.Regexp(t, "not a valid gguf file|unsupported gguf file", err.Error())
			return
		}
		require.EqualValues(t, len(first)+len(second), file.Size())
		for _, tensor := range file.Tensors() {
			require.Len(t, file.Bytes(tensor), int(tensor.Size))
			found, ok := file.Tensor(tensor.Name)
			require.True(t, ok)
			require.Equal(t, tensor, found)
		}
		for _, key := range file.Metadata().Keys() {
			require.NotContains(t, []string{"split.no", "split.count", "split.tensors.count"}, key)
		}
		gguf.ModelDigest(file.Metadata(), file.Tensors(), make([]gguf.Digest, len(file.Tensors())))
		require.NoError(t, file.Close())
	})
}
