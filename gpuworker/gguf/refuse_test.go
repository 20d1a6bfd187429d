package gguf_test

import (
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// spoil returns a file and the offset at which it must be refused.
type spoil func() (data []byte, offset uint64)

// pair builds a file with one pair of the given type and encoding; it is refused at the value, or
// before it by back bytes.
func pair(t gguf.ValueType, back uint64, encoded *raw) spoil {
	return func() ([]byte, uint64) {
		r := file(0, 1).str("key").u32(uint32(t))
		offset := r.at() - back
		return r.bytes(encoded.b...).bytes(make([]byte, 64)...).b, offset
	}
}

// dims builds a file with one tensor of these dimensions, refused at its dimension count.
func dims(t gguf.Type, d ...uint64) spoil {
	return func() ([]byte, uint64) {
		r := file(1, 0)
		offset := r.at() + 8 + 1
		return r.tensor("x", t, 0, d...).data(4096).b, offset
	}
}

func TestHostileFilesAreRefusedAtTheirOffset(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil spoil
		kind  error
		want  string
	}{
		"nothing at all":        {func() ([]byte, uint64) { return nil, 0 }, gguf.ErrFormat, "magic"},
		"another magic":         {func() ([]byte, uint64) { return append([]byte("GGUG\x00"), make([]byte, 100)...), 0 }, gguf.ErrFormat, "magic"},
		"magic alone":           {func() ([]byte, uint64) { return []byte("GGUF"), 4 }, gguf.ErrFormat, "truncated: version"},
		"big-endian magic":      {func() ([]byte, uint64) { return append([]byte("FUGG"), make([]byte, 60)...), 0 }, gguf.ErrUnsupported, "big-endian"},
		"big-endian version":    {func() ([]byte, uint64) { return (&raw{}).bytes('G', 'G', 'U', 'F', 0, 0, 0, 3).u64(0).u64(0).b, 4 }, gguf.ErrUnsupported, "big-endian"},
		"version 1":             {func() ([]byte, uint64) { return (&raw{}).bytes([]byte("GGUF")...).u32(1).u64(0).u64(0).b, 4 }, gguf.ErrUnsupported, "version 1"},
		"version 0":             {func() ([]byte, uint64) { return (&raw{}).bytes([]byte("GGUF")...).u32(0).u64(0).u64(0).b, 4 }, gguf.ErrUnsupported, "version 0"},
		"version 4":             {func() ([]byte, uint64) { return (&raw{}).bytes([]byte("GGUF")...).u32(4).u64(0).u64(0).b, 4 }, gguf.ErrUnsupported, "version 4"},
		"no counts":             {func() ([]byte, uint64) { r := file(0, 0); return r.b[:12], 8 }, gguf.ErrFormat, "truncated: tensor count"},
		"a huge tensor count":   {func() ([]byte, uint64) { return file(1<<60, 0).data(100).b, 8 }, gguf.ErrFormat, "tensors do not fit"},
		"a huge metadata count": {func() ([]byte, uint64) { return file(0, math.MaxUint64).data(100).b, 16 }, gguf.ErrFormat, "pairs do not fit"},
		"a million pairs":       {func() ([]byte, uint64) { return file(0, 1<<20).data(14 << 20).b, 16 }, gguf.ErrFormat, "want at most 65536"},
		"a million tensors":     {func() ([]byte, uint64) { return file(1<<20, 0).data(33 << 20).b, 8 }, gguf.ErrFormat, "want at most 131072"},
		"a header without end": {func() ([]byte, uint64) {
			r := file(0, 1).str("k").u32(9).u32(0).u64(65 << 20).data(65 << 20)
			return r.b, 24 + 8 + 1 + 4 + 12 + 65<<20
		}, gguf.ErrFormat, "larger than"},
		"one pair too few": {func() ([]byte, uint64) {
			r := file(0, 2).str("a").u32(0).bytes(1).str("bcdefghijklm")
			return r.b, r.at()
		}, gguf.ErrFormat, "truncated: metadata type"},
		"a key beyond the file":   {func() ([]byte, uint64) { r := file(0, 1).u64(1 << 62).u64(0).u64(0); return r.b, 32 }, gguf.ErrFormat, "truncated: metadata key"},
		"an empty key":            {func() ([]byte, uint64) { return file(0, 1).str("").u32(0).bytes(1).bytes(make([]byte, 9)...).b, 24 }, gguf.ErrFormat, "empty"},
		"a key that is not UTF-8": {func() ([]byte, uint64) { return file(0, 1).str("a\xffb").u32(0).bytes(1).b, 24 }, gguf.ErrFormat, "UTF-8"},
		"a very long key":         {func() ([]byte, uint64) { return file(0, 1).str(strings.Repeat("k", 1<<16)).u32(0).bytes(1).b, 24 }, gguf.ErrFormat, "at most 65535"},
		"a key twice": {func() ([]byte, uint64) {
			r := file(0, 2).str("a").u32(0).bytes(1)
			return r.str("a").u32(0).bytes(1).b, 38
		}, gguf.ErrFormat, "twice"},
		"an unknown value type":    {pair(13, 4, &raw{}), gguf.ErrFormat, "value type 13"},
		"a string beyond the file": {func() ([]byte, uint64) { r := file(0, 1).str("k").u32(8).u64(math.MaxUint64).u64(0); return r.b, 45 }, gguf.ErrFormat, "truncated: string"},
		"a number cut short":       {func() ([]byte, uint64) { r := file(0, 1).str("k").u32(10).u32(0); return r.b, 37 }, gguf.ErrFormat, "truncated: uint64"},
		"a bool of 2":              {pair(gguf.Bool, 0, (&raw{}).bytes(2)), gguf.ErrFormat, "bool is 2"},
		"a bool of 2 in an array": {func() ([]byte, uint64) {
			r := file(0, 1).str("k").u32(9).u32(7).u64(3)
			return r.bytes(0, 1, 2).b, 51
		}, gguf.ErrFormat, "bool is 2"},
		"2^60 numbers":        {pair(gguf.Array, 0, (&raw{}).u32(10).u64(1<<60)), gguf.ErrFormat, "longer than the file"},
		"2^63 bytes":          {pair(gguf.Array, 0, (&raw{}).u32(0).u64(1<<63)), gguf.ErrFormat, "longer than the file"},
		"2^60 strings":        {pair(gguf.Array, 0, (&raw{}).u32(8).u64(1<<60)), gguf.ErrFormat, "longer than the file"},
		"2^60 arrays":         {pair(gguf.Array, 0, (&raw{}).u32(9).u64(1<<60)), gguf.ErrFormat, "longer than the file"},
		"an array of no type": {pair(gguf.Array, 0, (&raw{}).u32(77).u64(1)), gguf.ErrFormat, "value type 77"},
		"arrays nested too deep": {func() ([]byte, uint64) {
			r := file(0, 1).str("key").u32(9)
			for range 20 {
				r.u32(9).u64(1)
			}
			return r.b, 24 + 8 + 3 + 4 + 3*12
		}, gguf.ErrFormat, "nested deeper"},
		"alignment zero":       {alignment(gguf.Uint32, (&raw{}).u32(0)), gguf.ErrFormat, `general\.alignment is 0, want a power of two`},
		"alignment 33":         {alignment(gguf.Uint32, (&raw{}).u32(33)), gguf.ErrFormat, `general\.alignment is 33, want a power of two`},
		"alignment 48":         {alignment(gguf.Uint32, (&raw{}).u32(48)), gguf.ErrFormat, `general\.alignment is 48, want .* from 8 to 1048576`},
		"alignment 4":          {alignment(gguf.Uint32, (&raw{}).u32(4)), gguf.ErrFormat, "is 4, want a power of two"},
		"alignment 2^31":       {alignment(gguf.Uint32, (&raw{}).u32(1<<31)), gguf.ErrFormat, "is 2147483648, want a power of two"},
		"alignment 2^64-1":     {alignment(gguf.Uint64, (&raw{}).u64(math.MaxUint64)), gguf.ErrFormat, "is 18446744073709551615, want"},
		"alignment in words":   {alignment(gguf.String, (&raw{}).str("32")), gguf.ErrFormat, "is of type string, want a power of two"},
		"negative alignment":   {alignment(gguf.Int32, (&raw{}).u32(0xffffffe0)), gguf.ErrFormat, "is -32, want a power of two.*get the model from elsewhere"},
		"an empty tensor name": {func() ([]byte, uint64) { return file(1, 0).tensor("", gguf.F32, 0, 1).data(64).b, 24 }, gguf.ErrFormat, "empty"},
		"a long tensor name": {func() ([]byte, uint64) {
			return file(1, 0).tensor(strings.Repeat("n", 65), gguf.F32, 0, 1).data(64).b, 24
		}, gguf.ErrFormat, "at most 64"},
		"a name not in UTF-8": {func() ([]byte, uint64) { return file(1, 0).tensor("\xc3(", gguf.F32, 0, 1).data(64).b, 24 }, gguf.ErrFormat, "UTF-8"},
		"a tensor name twice": {func() ([]byte, uint64) {
			r := file(2, 0).tensor("x", gguf.F32, 0, 1)
			offset := r.at()
			return r.tensor("x", gguf.F32, 32, 1).data(64).b, offset
		}, gguf.ErrFormat, "twice"},
		"an unknown type":         {func() ([]byte, uint64) { return file(1, 0).tensor("x", 4, 0, 32).data(64).b, 24 + 9 + 4 + 8 }, gguf.ErrUnsupported, `type 4 \(Q4_2\), which ggml removed`},
		"a type that no ggml had": {func() ([]byte, uint64) { return file(1, 0).tensor("x", 99, 0, 32).data(64).b, 24 + 9 + 4 + 8 }, gguf.ErrUnsupported, "unknown type 99"},
		"a removed type of 2024": {func() ([]byte, uint64) { return file(1, 0).tensor("x", 33, 0, 32).data(64).b, 24 + 9 + 4 + 8 }, gguf.ErrUnsupported,
			`type 33 \(Q4_0_8_8\), which ggml removed: get the model in Q4_0 or another type, or quantize it again`},
		"a removed type of IQ4_NL": {func() ([]byte, uint64) { return file(1, 0).tensor("x", 36, 0, 32).data(64).b, 24 + 9 + 4 + 8 }, gguf.ErrUnsupported, "get the model in IQ4_NL"},
		"no dimensions":            {dims(gguf.F32), gguf.ErrFormat, "0 dimensions"},
		"five dimensions":          {dims(gguf.F32, 1, 1, 1, 1, 1), gguf.ErrFormat, "5 dimensions"},
		"2^32-1 dimensions":        {func() ([]byte, uint64) { return file(1, 0).str("x").u32(math.MaxUint32).data(64).b, 33 }, gguf.ErrFormat, "want 1 to 4"},
		"a dimension of zero":      {dims(gguf.F32, 4, 0), gguf.ErrFormat, "dimension 1 is zero"},
		"a product above 2^64":     {dims(gguf.F32, 1<<32, 1<<32, 2), gguf.ErrFormat, "overflow"},
		"a product of 2^63":        {dims(gguf.F32, 1<<62, 2), gguf.ErrFormat, "overflow"},
		"bytes above 2^63":         {dims(gguf.F64, 1<<61), gguf.ErrFormat, "overflow"},
		"rows of half a block":     {dims(gguf.Q8_0, 48, 2), gguf.ErrFormat, "whole Q8_0 blocks"},
		"a tensor not aligned": {func() ([]byte, uint64) {
			r := file(1, 0).tensor("x", gguf.F32, 4, 1)
			return r.data(64).b, 24 + 9 + 4 + 8 + 4
		}, gguf.ErrFormat, "not aligned to 32"},
		"a tensor cut short": {func() ([]byte, uint64) { r := file(1, 0).tensor("x", gguf.F32, 0, 32); return r.data(127).b, 49 }, gguf.ErrFormat, "truncated: tensor"},
		"a tensor far away": {func() ([]byte, uint64) {
			r := file(1, 0).tensor("x", gguf.F32, math.MaxUint64-31, 32)
			return r.data(128).b, 49
		}, gguf.ErrFormat, "truncated: tensor"},
		"a tensor and no data": {func() ([]byte, uint64) { r := file(1, 0).tensor("x", gguf.F32, 0, 1); return r.b, 49 }, gguf.ErrFormat, "truncated: tensor"},
		"tensors that overlap": {func() ([]byte, uint64) {
			return file(2, 0).tensor("x", gguf.F32, 0, 9).tensor("y", gguf.F32, 32, 8).data(64).b, 57 + 25
		}, gguf.ErrFormat, `"y" overlaps tensor "x"`},
		"tensors at one place": {func() ([]byte, uint64) {
			return file(2, 0).tensor("x", gguf.F32, 0, 8).tensor("y", gguf.F32, 0, 8).data(64).b, 57 + 25
		}, gguf.ErrFormat, "overlaps"},
		"overlap out of order": {func() ([]byte, uint64) {
			return file(2, 0).tensor("x", gguf.F32, 32, 8).tensor("y", gguf.F32, 0, 9).data(64).b, 49
		}, gguf.ErrFormat, `"x" overlaps tensor "y"`},
		"an info cut in a name": {func() ([]byte, uint64) {
			r := file(1, 0).str("x").u32(1).u64(1).u32(0)
			return append(r.b, 0, 0, 0, 0, 0, 0, 0), 49
		}, gguf.ErrFormat, "truncated: tensor offset"},
	} {
		t.Run(name, func(t *testing.T) {
			data, offset := tc.spoil()
			_, err := gguf.Parse(data)
			require.ErrorIs(t, err, tc.kind)
			var where *gguf.FormatError
			require.ErrorAs(t, err, &where)
			require.Regexp(t, tc.want, err.Error())
			require.Equal(t, offset, where.Offset, "%v", err)
		})
	}
}

// alignment builds a file whose general.alignment is encoded so.
func alignment(t gguf.ValueType, encoded *raw) spoil {
	return func() ([]byte, uint64) {
		return file(0, 1).str("general.alignment").u32(uint32(t)).bytes(encoded.b...).b, 24
	}
}

func TestAFileCutAnywhereIsRefusedOrComplete(t *testing.T) {
	data := everything(t)
	whole, err := gguf.Parse(data)
	require.NoError(t, err)
	last := whole.Tensors()[2]
	for n := range data {
		_, err := gguf.Parse(data[:n])
		if uint64(n) >= last.Offset+last.Size {
			require.NoError(t, err, "only padding is missing at %d", n)
			continue
		}
		require.ErrorIs(t, err, gguf.ErrFormat, "cut at %d", n)
	}
}

func TestCountsThatLieDoNotAllocate(t *testing.T) {
	hostile := [][]byte{
		file(1<<40, 0).data(1 << 10).b,
		file(0, 1).str("k").u32(9).u32(8).u64(1 << 60).data(1 << 10).b,
		file(0, 1).str("k").u32(9).u32(0).u64(1 << 60).data(1 << 10).b,
		file(1, 0).tensor("x", gguf.F32, 0, 1<<40).data(1 << 10).b,
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, data := range hostile {
		_, err := gguf.Parse(data)
		require.ErrorIs(t, err, gguf.ErrFormat)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}
