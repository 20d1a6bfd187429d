package gauge

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"

	"lukechampine.com/blake3"
)

// Prompt is the prompt of a sequence: n random ids, a function of its arguments.
func Prompt(seed uint64, sequence, n, vocabulary int) []int32 {
	r := rand.New(rand.NewPCG(seed, uint64(sequence)))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(r.IntN(vocabulary))
	}
	return ids
}

// Digest is BLAKE3 of token ids as little-endian uint32, 64 hex digits.
func Digest(tokens []int32) string {
	bytes := make([]byte, 0, 4*len(tokens))
	for _, id := range tokens {
		bytes = binary.LittleEndian.AppendUint32(bytes, uint32(id))
	}
	sum := blake3.Sum256(bytes)
	return hex.EncodeToString(sum[:])
}
