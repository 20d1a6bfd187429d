package blake3

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
	reference "lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"
)

func message(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*i>>7 + i)
	}
	return data
}

func TestValuesMakeTheDigestOfTheLibrary(t *testing.T) {
	for size := 2 * Least; size <= 4*Best; size *= 2 {
		data, half := message(size), size/2
		node := guts.ParentNode(Value(data[:half], 0), Value(data[half:], uint64(half)/guts.ChunkSize), &guts.IV, 0)
		node.Flags |= guts.FlagRoot
		words := guts.WordsToBytes(guts.CompressNode(node))
		require.Equal(t, reference.Sum256(data), [32]byte(words[:32]), fmt.Sprint(size, " bytes"))
	}
}

func TestEveryPathHasTheSameValues(t *testing.T) {
	if !cpu.X86.HasAVX512F {
		t.Skip("there is one path on this processor, which has no AVX-512: run it on one that does")
	}
	data := message(Best)
	for size := Least; size <= Best; size *= 2 {
		for _, chunk := range []uint64{0, 256, 1<<32 - 256, 1 << 32, 1<<52 - 256} {
			require.Equal(t, portable(data[:size], chunk), Value(data[:size], chunk), fmt.Sprint(size, " bytes from chunk ", chunk))
		}
		require.Equal(t, portable(data[:size], 0), Value(append([]byte{0}, data[:size]...)[1:], 0), "unaligned")
	}
}

func TestOtherSizesAreRefused(t *testing.T) {
	for _, size := range []int{0, Least / 2, 3 * Least, Best + 1} {
		require.Panics(t, func() { Value(make([]byte, size), 0) })
	}
}

func BenchmarkValue(b *testing.B) {
	data := message(Best)
	for size := Least; size <= Best; size *= 4 {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				Value(data[:size], 0)
			}
		})
	}
}
