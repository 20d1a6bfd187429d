package philox

import "math/bits"

// Words returns the four output words of ten rounds.
func Words(key uint64, counter [4]uint32) [4]uint32 {
	c, k := counter, [2]uint32{uint32(key), uint32(key >> 32)}
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c[0])
		h1, l1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}

// Bits returns the first two words, word 0 in the high half.
func Bits(key uint64, counter [4]uint32) uint64 {
	w := Words(key, counter)
	return uint64(w[0])<<32 | uint64(w[1])
}
