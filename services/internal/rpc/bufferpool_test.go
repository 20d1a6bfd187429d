package rpc

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
)

func TestFlattenOverwritesPooledBytes(t *testing.T) {
	for _, n := range []int{2, 1000, 32<<10 - 1, 32 << 10, 32<<10 + 1, 220_000, 1 << 20, 1<<20 + 1, 4<<20 - 100, 5 << 20} {
		for round := range byte(4) {
			want := bytes.Repeat([]byte{round + 1}, n)
			whole := Flatten(mem.BufferSlice{mem.SliceBuffer(want[:n/3]), mem.SliceBuffer(want[n/3:])})
			require.True(t, bytes.Equal(want, whole.ReadOnlyData()), "%d bytes", n)
			whole.Free()
		}
	}
}

func TestBuffersAreAtMostTwiceTheirLength(t *testing.T) {
	var p bufferPool
	for n := 1; n <= 9<<20; n += n/3 + 1 {
		piece := p.Get(n)
		require.Len(t, *piece, n)
		require.LessOrEqual(t, cap(*piece), max(2*n, 1<<minPooledPower))
		p.Put(piece)
	}
	short := make([]byte, 40_000)
	p.Put(&short)
	require.GreaterOrEqual(t, cap(*p.Get(50_000)), 50_000, "what is not from here is not kept")
}

func BenchmarkFlatten(b *testing.B) {
	frame := mem.SliceBuffer(make([]byte, 16<<10))
	data := mem.BufferSlice{}
	for range 14 {
		data = append(data, frame)
	}
	b.SetBytes(int64(data.Len()))
	for b.Loop() {
		whole := Flatten(data)
		whole.Free()
	}
}
