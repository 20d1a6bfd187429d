package safetensors_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/internal/safetensors"
)

var everyType = []safetensors.Type{
	safetensors.Bool, safetensors.U8, safetensors.I8, safetensors.I16, safetensors.U16, safetensors.F16, safetensors.BF16,
	safetensors.I32, safetensors.U32, safetensors.F32, safetensors.F64, safetensors.I64, safetensors.U64,
}

func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

func TestWriteMatchesTheReferenceLibrary(t *testing.T) {
	require.Equal(t, fileOf(`{}      `), written(t, nil))
	require.Equal(t, fileOf(`{"__metadata__":{"framework":"pt"}}     `), written(t, map[string]string{"framework": "pt"}))
	require.Equal(t, fileOf(`{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}`, count(24)...),
		written(t, nil, source("attn.0", safetensors.F32, count(24), 1, 2, 3)))
	require.Equal(t, fileOf(`{"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       `, count(24)...),
		written(t, nil, source("attn0", safetensors.F32, count(24), 1, 1, 2, 3)))
}

func TestWriteOrdersByWidthThenName(t *testing.T) {
	file := written(t, map[string]string{"z": "1", "a": "<&>\"\\\n\x00é"},
		source("b", safetensors.U8, []byte{1}, 1), source("c", safetensors.F64, count(8)), source("a", safetensors.U8, []byte{2}, 1),
		source("e", safetensors.F32, nil, 0, 5), source("d", safetensors.F16, count(2), 1))
	require.Equal(t, fileOf(`{"__metadata__":{"a":"<&>\"\\\n\u0000é","z":"1"},`+
		`"c":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},`+
		`"d":{"dtype":"F16","shape":[1],"data_offsets":[8,10]},"a":{"dtype":"U8","shape":[1],"data_offsets":[10,11]},`+
		`"b":{"dtype":"U8","shape":[1],"data_offsets":[11,12]}} `, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 2, 1), file)
}

func TestWriteIsDeterministic(t *testing.T) {
	build := func(turn int, slow bool) []byte {
		metadata := map[string]string{}
		var sources []safetensors.Source
		for i := range everyType {
			i = (i + turn) % len(everyType)
			metadata[fmt.Sprint("key", i)] = "value"
			s := source(fmt.Sprint("tensor", i), everyType[i], count(6*int(everyType[i].Size())), 2, 3)
			if slow {
				s.Data = iotest.OneByteReader(iotest.DataErrReader(s.Data))
			}
			sources = append(sources, s)
		}
		return written(t, metadata, sources...)
	}
	want := build(0, false)
	for turn := range everyType {
		require.Equal(t, want, build(turn, turn%2 == 0))
	}
}

func TestWriteRoundTripIsAligned(t *testing.T) {
	for n := range 20 {
		metadata := map[string]string{strings.Repeat("k", n+1): strings.Repeat("é", n)}
		var sources []safetensors.Source
		data := map[string][]byte{}
		for i, e := range everyType {
			shape := []int64{int64(n % 4), int64(i%3 + 1)}[:i%3]
			size := int(e.Size())
			for _, length := range shape {
				size *= int(length)
			}
			name := fmt.Sprint("t", i)
			data[name] = count(size)
			sources = append(sources, source(name, e, data[name], shape...))
		}
		f, err := parse(written(t, metadata, sources...))
		require.NoError(t, err)
		require.Equal(t, metadata, f.Metadata())
		require.Len(t, f.Tensors(), len(sources))
		for _, s := range sources {
			got, ok := f.Tensor(s.Name)
			require.True(t, ok)
			require.Equal(t, s.Type, got.Type)
			require.Equal(t, append([]int64{}, s.Shape...), got.Shape)
			require.Zero(t, got.Offset%got.Type.Size())
			require.Equal(t, data[s.Name], dataOf(t, f, got))
		}
	}
}

func TestWriteRefusesInvalidSources(t *testing.T) {
	one := func(name string, e safetensors.Type, shape ...int64) []safetensors.Source {
		return []safetensors.Source{source(name, e, nil, shape...)}
	}
	for name, tc := range map[string]struct {
		metadata map[string]string
		sources  []safetensors.Source
	}{
		"no name":              {nil, one("", safetensors.F32, 0)},
		"the metadata's name":  {nil, one("__metadata__", safetensors.F32, 0)},
		"a name twice":         {nil, append(one("a", safetensors.F32, 0), one("a", safetensors.U8, 0)...)},
		"no type":              {nil, one("a", 0, 0)},
		"an unknown type":      {nil, one("a", 14, 0)},
		"a negative length":    {nil, one("a", safetensors.F32, -1)},
		"a negative one and 0": {nil, one("a", safetensors.F32, -1, 0)},
		"nine lengths":         {nil, one("a", safetensors.F32, 0, 1, 1, 1, 1, 1, 1, 1, 1)},
		"an overflow":          {nil, one("a", safetensors.F32, 1<<31, 1<<31)},
		"an overflow of two":   {nil, append(one("a", safetensors.U8, 1<<62), one("b", safetensors.U8, 1<<62)...)},
		"broken UTF-8":         {nil, one("a\xff", safetensors.F32, 0)},
		"broken text":          {map[string]string{"k": "\xc3"}, nil},
		"a broken key":         {map[string]string{"\xed\xa0\x80": ""}, nil},
		"a long text":          {map[string]string{"k": strings.Repeat("x", safetensors.MaxHeader)}, nil},
		"too few bytes":        {nil, []safetensors.Source{source("a", safetensors.F32, count(7), 2)}},
		"too many bytes":       {nil, []safetensors.Source{source("a", safetensors.F32, count(9), 2)}},
		"bytes for nothing":    {nil, []safetensors.Source{source("a", safetensors.F32, count(1), 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, safetensors.Write(io.Discard, tc.metadata, tc.sources), safetensors.ErrWrite)
		})
	}
}

func TestWriteReturnsReadAndWriteErrors(t *testing.T) {
	worn := errors.New("sector not found")
	for _, n := range []int{3, 4} {
		s := source("a", safetensors.F32, nil, 1)
		s.Data = io.MultiReader(bytes.NewReader(count(n)), iotest.ErrReader(worn))
		require.ErrorIs(t, safetensors.Write(io.Discard, nil, []safetensors.Source{s}), worn)
	}
	require.ErrorIs(t, safetensors.Write(full{}, nil, nil), errFull)
	require.ErrorIs(t, safetensors.Write(full{}, nil, []safetensors.Source{source("a", safetensors.U8, count(1<<20), 1<<20)}), errFull)
}

// full is a writer that has no space.
type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }
