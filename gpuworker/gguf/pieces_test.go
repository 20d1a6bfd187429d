package gguf_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestPiecesAgreeWithTheLibraryAtEveryBorder(t *testing.T) {
	data := make([]byte, 700<<10)
	for i := range data {
		data[i] = byte(i*i>>7 + i)
	}
	for _, piece := range []uint64{16 << 10, 32 << 10, 128 << 10} {
		for _, border := range []uint64{0, 1 << 10, 16 << 10, 32 << 10, 48 << 10, 128 << 10, 256 << 10, 384 << 10, 640 << 10} {
			for _, n := range []uint64{border - 1, border, border + 1, border + 1025} {
				if n > uint64(len(data)) {
					continue
				}
				p := gguf.NewPieces(n, piece)
				var group sync.WaitGroup
				for _, i := range rand.Perm(int(max(n, 1)+piece-1) / int(piece)) {
					group.Go(func() { p.Hash(i, data[uint64(i)*piece:min(uint64(i+1)*piece, n)]) })
				}
				group.Wait()
				require.Equal(t, gguf.Digest(blake3.Sum256(data[:n])), p.Sum(), fmt.Sprint(n, " bytes in pieces of ", piece))
				require.Equal(t, gguf.Digest(blake3.Sum256(data[:n])), p.Sum(), "Sum changes nothing")
			}
		}
	}
}

func TestPiecesRefuseASizeThatIsNoSubtree(t *testing.T) {
	require.Panics(t, func() { gguf.NewPieces(1, 8<<10) })
	require.Panics(t, func() { gguf.NewPieces(1, 48<<10) })
}

func BenchmarkPieces(b *testing.B) {
	data := make([]byte, 2<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		gguf.NewPieces(2*uint64(len(data)), uint64(len(data))).Hash(0, data)
	}
}
