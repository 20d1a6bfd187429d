package gguf_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/gguf"
)

func TestHasherAgreesWithTheLibrary(t *testing.T) {
	// The hasher agrees with the library at every border.
	data := make([]byte, 600<<10)
	for i := range data {
		data[i] = byte(i*i>>7 + i)
	}
	var h gguf.Hasher
	for _, border := range []int{0, 64, 1 << 10, 16 << 10, 32 << 10, 48 << 10, 64 << 10, 256 << 10, 512 << 10} {
		for _, n := range []int{border - 1, border, border + 1, border + 1025} {
			if n < 0 {
				continue
			}
			want := gguf.Digest(blake3.Sum256(data[:n]))
			for _, piece := range []int{997, 16 << 10, 16<<10 + 1, 100 << 10, len(data)} {
				h.Reset()
				for rest := data[:n]; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
					wrote, err := h.Write(rest[:min(piece, len(rest))])
					require.NoError(t, err)
					require.Equal(t, min(piece, len(rest)), wrote)
				}
				require.Equal(t, want, h.Sum(), fmt.Sprint(n, " bytes in pieces of ", piece))
				require.Equal(t, want, h.Sum(), "Sum changes nothing")
			}
		}
	}
}

func BenchmarkHasher(b *testing.B) {
	piece := make([]byte, 256<<10)
	var h gguf.Hasher
	b.SetBytes(int64(len(piece)))
	for b.Loop() {
		_, _ = h.Write(piece)
	}
}
