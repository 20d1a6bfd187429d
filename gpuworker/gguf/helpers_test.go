package gguf_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// raw builds a file field by field, so that tests can put wrong fields anywhere and know where they
// are.
type raw struct{ b []byte }

func (r *raw) bytes(p ...byte) *raw { r.b = append(r.b, p...); return r }
func (r *raw) u32(v uint32) *raw    { r.b = binary.LittleEndian.AppendUint32(r.b, v); return r }
func (r *raw) u64(v uint64) *raw    { r.b = binary.LittleEndian.AppendUint64(r.b, v); return r }
func (r *raw) str(s string) *raw    { r.u64(uint64(len(s))); r.b = append(r.b, s...); return r }
func (r *raw) at() uint64           { return uint64(len(r.b)) }

// file begins a version 3 file with the given counts.
func file(tensors, pairs uint64) *raw {
	return (&raw{}).bytes([]byte("GGUF")...).u32(3).u64(tensors).u64(pairs)
}

// tensor appends a tensor info.
func (r *raw) tensor(name string, t gguf.Type, offset uint64, dims ...uint64) *raw {
	r.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		r.u64(d)
	}
	return r.u32(uint32(t)).u64(offset)
}

// data appends padding up to 32 and n zero bytes.
func (r *raw) data(n int) *raw {
	for len(r.b)%32 != 0 {
		r.b = append(r.b, 0)
	}
	return r.bytes(make([]byte, n)...)
}

// everything is a file with every metadata type and several tensors, one of them quantised.
func everything(t testing.TB) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gguf.NewWriter(&buf)
	w.Set("general.alignment", uint32(64))
	for _, pair := range pairs {
		w.Set(pair.key, pair.value)
	}
	w.Set("array.nested", gguf.ArrayOf{Elem: gguf.Array, Items: []any{[]int32{1, 2}, []string{"x"}, gguf.ArrayOf{Elem: gguf.Uint8}}})
	w.Tensor("a.weight", gguf.F32, 3, 5)
	w.Tensor("b.weight", gguf.Q4K, 512, 2)
	w.Tensor("c.bias", gguf.F16, 1, 1, 1, 7)
	require.NoError(t, w.Begin())
	data := make([]byte, 60+2*2*144+14)
	for i := range data {
		data[i] = byte(i * 7)
	}
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return buf.Bytes()
}

// pairs holds a value of every type but arrays of arrays.
var pairs = []struct {
	key   string
	value any
}{
	{"u8", uint8(200)}, {"i8", int8(-100)}, {"u16", uint16(60000)}, {"i16", int16(-30000)}, {"u32", uint32(4e9)},
	{"i32", int32(-2e9)}, {"u64", uint64(1 << 63)}, {"i64", int64(-1 << 62)}, {"f32", float32(1.5)}, {"f64", 2.25},
	{"yes", true}, {"no", false}, {"text", "grüße"}, {"general.name", "a model"},
	{"array.u8", []uint8{1, 255}}, {"array.i8", []int8{-1, 2}}, {"array.u16", []uint16{1, 2}}, {"array.i16", []int16{-1}},
	{"array.u32", []uint32{7}}, {"array.i32", []int32{-7, 8}}, {"array.u64", []uint64{1 << 40}}, {"array.i64", []int64{-1 << 40}},
	{"array.f32", []float32{0.5, -1}}, {"array.f64", []float64{0.25}}, {"array.bool", []bool{true, false, true}},
	{"array.text", []string{"", "ab", "\xff\xfe", "long enough to matter"}}, {"array.empty", []string{}},
}
