package gguf_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestEveryMetadataTypeReadsBackAsWritten(t *testing.T) {
	f, err := gguf.Parse(everything(t))
	require.NoError(t, err)
	m := f.Metadata()
	require.Len(t, m.Keys(), len(pairs)+2)
	for _, pair := range pairs {
		got, ok, err := read(m, pair.key, pair.value)
		require.NoError(t, err, pair.key)
		require.True(t, ok, pair.key)
		require.Equal(t, fmt.Sprint(pair.value), fmt.Sprint(got), pair.key)
		_, ok, err = read(m, pair.key+".absent", pair.value)
		require.NoError(t, err)
		require.False(t, ok)
	}
	nested, ok := m.Value("array.nested")
	require.True(t, ok)
	require.Equal(t, gguf.Array, nested.Elem)
	require.EqualValues(t, 3, nested.Len)
}

// read calls the getter that suits the value.
func read(m *gguf.Metadata, key string, like any) (got any, ok bool, err error) {
	switch like.(type) {
	case uint8, uint16, uint32, uint64:
		return either(m.Uint(key))
	case int8, int16, int32, int64:
		return either(m.Int(key))
	case float32, float64:
		return either(m.Float(key))
	case bool:
		return either(m.Bool(key))
	case string:
		return either(m.String(key))
	case []string:
		return either(m.Strings(key))
	case []bool:
		return either(m.Bools(key))
	case []float32, []float64:
		return either(m.Floats(key))
	}
	return either(m.Ints(key))
}

func either[T any](v T, ok bool, err error) (any, bool, error) { return v, ok, err }

func TestAGetterOfTheWrongTypeNamesKeyAndBothTypes(t *testing.T) {
	f, err := gguf.Parse(everything(t))
	require.NoError(t, err)
	m := f.Metadata()
	for name, tc := range map[string]struct {
		call func() error
		want string
	}{
		"text asked for as an integer":       {func() error { _, _, err := m.Uint("text"); return err }, "metadata text is string, want integer"},
		"a negative number as unsigned":      {func() error { _, _, err := m.Uint("i32"); return err }, "metadata i32 is int32, want integer"},
		"a large unsigned as signed":         {func() error { _, _, err := m.Int("u64"); return err }, "metadata u64 is uint64"},
		"an integer as a float":              {func() error { _, _, err := m.Float("u32"); return err }, "metadata u32 is uint32, want float32"},
		"a number as a truth value":          {func() error { _, _, err := m.Bool("u8"); return err }, "metadata u8 is uint8, want bool"},
		"a number as text":                   {func() error { _, _, err := m.String("u8"); return err }, "metadata u8 is uint8, want string"},
		"a string as an array of strings":    {func() error { _, _, err := m.Strings("text"); return err }, "metadata text is string, want array"},
		"floats as integers":                 {func() error { _, _, err := m.Ints("array.f32"); return err }, "metadata array.f32 is array of 2 float32, want array of integers"},
		"integers as floats":                 {func() error { _, _, err := m.Floats("array.u8"); return err }, "array of 2 uint8"},
		"strings as truth values":            {func() error { _, _, err := m.Bools("array.text"); return err }, "array of 4 string"},
		"no strings at all as truth values":  {func() error { _, _, err := m.Bools("array.empty"); return err }, "array of 0 string"},
		"a nested array as an array of ints": {func() error { _, _, err := m.Ints("array.nested"); return err }, "array of 3 array"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.call()
			require.ErrorIs(t, err, gguf.ErrValueType)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestTensorsAreFoundByNameWithTheirBytes(t *testing.T) {
	data := everything(t)
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, data, 0o600))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	require.EqualValues(t, 3, f.Version())
	require.EqualValues(t, 64, f.Alignment())
	require.EqualValues(t, len(data), f.Size())
	require.Len(t, f.Tensors(), 3)

	b, ok := f.Tensor("b.weight")
	require.True(t, ok)
	require.Equal(t, gguf.Q4K, b.Type)
	require.Equal(t, []uint64{512, 2}, b.Dims)
	require.EqualValues(t, 1024, b.Elements())
	require.EqualValues(t, 4*144, b.Size)
	require.Zero(t, b.Offset%64)
	require.Equal(t, data[b.Offset:b.Offset+b.Size], f.Bytes(b))
	require.Equal(t, byte(60*7%256), f.Bytes(b)[0], "data follows the first tensor's 60 bytes")

	part := make([]byte, 100)
	require.NoError(t, f.ReadAt(b, part, 50))
	require.Equal(t, f.Bytes(b)[50:150], part)
	require.ErrorContains(t, f.ReadAt(b, part, b.Size-99), "outside")
	require.Nil(t, f.Bytes(gguf.Tensor{Offset: f.Size(), Size: 1}))
	_, ok = f.Tensor("absent")
	require.False(t, ok)

	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Nil(t, f.Bytes(b))
	require.ErrorIs(t, f.ReadAt(b, part, 0), gguf.ErrClosed)
	name, _, err := f.Metadata().String("general.name")
	require.NoError(t, err)
	require.Equal(t, "a model", name, "metadata outlives the mapping")
}

func TestRowsOfAStackAreOfEachMatrix(t *testing.T) {
	var data bytes.Buffer
	w := gguf.NewWriter(&data)
	w.Set("general.name", "stacks")
	w.Tensor("stack", gguf.Q8_0, 64, 5, 3) // rows of 68 bytes
	w.Tensor("one", gguf.Q8_0, 64, 5, 1)
	w.Tensor("four", gguf.Q8_0, 64, 5, 3, 2)
	require.NoError(t, w.Begin())
	content := make([]byte, 15*68+20)
	for i := range content {
		content[i] = byte(i * 7 % 251)
	}
	// Data is aligned to 32 bytes: 15 rows are 1020 bytes.
	for _, part := range [][]byte{content[:1020], content[:340], append(slices.Clone(content[:1020]), content[:1020]...)} {
		_, err := w.Write(part)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, data.Bytes(), 0o600))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()

	stack, _ := f.Tensor("stack")
	view, err := stack.Rows(3, 5)
	require.NoError(t, err)
	require.Equal(t, "stack[3:5]", view.Name)
	require.Equal(t, []uint64{64, 2, 3}, view.Dims)
	require.EqualValues(t, 3*2*68, view.Size)
	want := slices.Concat(content[3*68:5*68], content[8*68:10*68], content[13*68:15*68])
	require.Equal(t, want, f.Bytes(view))
	for off := range want { // within a run, and over the ends of one and of two
		for _, n := range []int{1, 68, 136, 137, 300, len(want)} {
			part := make([]byte, n)
			if off+n > len(want) {
				require.ErrorContains(t, f.ReadAt(view, part, uint64(off)), "outside")
				continue
			}
			require.NoError(t, f.ReadAt(view, part, uint64(off)))
			require.Equal(t, want[off:off+n], part, "%d from %d", n, off)
		}
	}
	all, err := stack.Rows(0, 5)
	require.NoError(t, err)
	require.Equal(t, f.Bytes(stack), f.Bytes(all))

	one, _ := f.Tensor("one")
	single, err := one.Rows(1, 2)
	require.NoError(t, err)
	require.Equal(t, []uint64{64, 1}, single.Dims, "a stack of one is a matrix")
	require.Zero(t, single.Run)
	require.Equal(t, content[68:136], f.Bytes(single))

	four, _ := f.Tensor("four")
	for name, tc := range map[string]struct {
		tensor     gguf.Tensor
		first, end uint64
	}{"a row too many": {stack, 3, 6}, "no rows": {stack, 3, 3}, "a view of a stack": {view, 0, 1}, "four dimensions": {four, 0, 1}} {
		_, err := tc.tensor.Rows(tc.first, tc.end)
		require.ErrorIs(t, err, gguf.ErrFormat, name)
	}

	// A view whose last run is beyond the end of the file is not of this file.
	beyond := view
	beyond.Offset = f.Size() - 2*340 - 136 + 1
	require.Nil(t, f.Bytes(beyond))
	require.ErrorContains(t, f.ReadAt(beyond, make([]byte, 1), 0), "outside")
	beyond.Offset--
	require.NotNil(t, f.Bytes(beyond))
}

func TestVersionTwoReadsLikeVersionThree(t *testing.T) {
	data := everything(t)
	data[4] = 2
	f, err := gguf.Parse(data)
	require.NoError(t, err)
	require.EqualValues(t, 2, f.Version())
	require.Len(t, f.Tensors(), 3)
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	fifo, empty := filepath.Join(dir, "fifo"), filepath.Join(dir, "empty")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for name, tc := range map[string]struct{ path, want string }{
		"a directory": {dir, "directory"}, "a fifo": {fifo, "special file"}, "a device": {"/dev/zero", "special file"},
		"an empty file": {empty, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gguf.Open(tc.path)
			require.ErrorIs(t, err, gguf.ErrFormat)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, tc.path)
		})
	}
	_, err := gguf.Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestTruncatedMappingIsAnError(t *testing.T) {
	// A file that is truncated under the mapping causes an error, not the end of the process.
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	w.Tensor("big", gguf.I8, 1<<20)
	require.NoError(t, w.Begin())
	_, err := w.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	big, _ := f.Tensor("big")
	view := f.Bytes(big)
	require.NoError(t, os.Truncate(path, 4096))

	sum := 0
	err = gguf.Guard(func() {
		for _, b := range view {
			sum += int(b)
		}
	})
	require.ErrorIs(t, err, gguf.ErrFault)
	err = f.ReadAt(big, make([]byte, 10), big.Size-10)
	require.ErrorIs(t, err, gguf.ErrFault)
	require.ErrorContains(t, err, "big")
}

func TestGuardPassesOtherPanicsThrough(t *testing.T) {
	require.PanicsWithError(t, "mine", func() { _ = gguf.Guard(func() { panic(errors.New("mine")) }) })
	var none []int
	require.Panics(t, func() { _ = gguf.Guard(func() { none[0]++ }) })
	var nothing *int
	require.Panics(t, func() { _ = gguf.Guard(func() { *nothing++ }) })
	require.NoError(t, gguf.Guard(func() {}))
}
