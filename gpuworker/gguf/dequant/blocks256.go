package dequant

// Formats with blocks of 256 weights.

// scaleMin returns scale and minimum, of six bits each, of sub-block j of 8, packed into 12 bytes:
// the first four of each in the low six bits of bytes 0-3 and 4-7; the others with their low four
// bits in bytes 8-11, scale in the low half, and their high two bits on top of the first eight
// bytes.
func scaleMin(s []byte, j int) (scale, minimum int) {
	if j < 4 {
		return int(s[j] & 63), int(s[j+4] & 63)
	}
	return int(s[j+4]&15 | s[j-4]>>6<<4), int(s[j+4]>>4 | s[j]>>6<<4)
}

// q2k: 16 bytes of scales, 64 bytes of bit pairs, half d, half dmin. A byte of scales has the scale
// of 16 weights in its low half and their minimum in its high half. Each half of 128 weights has 32
// bytes of pairs; its quarter k of 32 weights is pair k of each.
func q2k(b []byte, dst []float64) {
	scales, q, d, dmin := b[:16], b[16:80], halfAt(b[80:]), halfAt(b[82:])
	for i := range dst {
		s := scales[i/16]
		dst[i] = d*float64(int(s&15)*pair(q, i)) - dmin*float64(s>>4)
	}
}

// pair returns the two bits of weight i in Q2_K and Q3_K.
func pair(q []byte, i int) int { return int(q[i/128*32+i%32] >> (i % 128 / 32 * 2) & 3) }

// q3k: 32 bytes of third bits, 64 bytes of bit pairs as in q2k, 12 bytes of scales, half d. Bit j of
// byte l of the third bits belongs to weight l of sub-block j of 32. Quants are biased by 4.
func q3k(b []byte, dst []float64) {
	high, q, scales, d := b[:32], b[32:96], b[96:108], halfAt(b[108:])
	for i := range dst {
		v := pair(q, i) | int(high[i%32]>>(i/32)&1)<<2
		dst[i] = d * float64((scale3k(scales, i/16)-32)*(v-4))
	}
}

// scale3k returns the six bits of the scale of sub-block j of 16: the low four bits are in the low
// halves of the first eight bytes and then in their high halves, the high two in the last four
// bytes, a pair of bits for every fourth sub-block.
func scale3k(s []byte, j int) int { return int(s[j%8]>>(j/8*4)&15 | s[8+j%4]>>(j/4*2)&3<<4) }

// iq4xs: half d, 16 bits of high pairs, 4 bytes of low nibbles, 128 bytes of level indices. A scale
// of 32 weights has six bits, biased by 32; indices of 32 weights lie as in IQ4_NL.
func iq4xs(b []byte, dst []float64) {
	d, high, low, q := halfAt(b), int(b[2])|int(b[3])<<8, b[4:8], b[8:136]
	for i := range dst {
		sub := i / 32
		scale := int(low[sub/2]>>(sub%2*4))&15 | high>>(2*sub)&3<<4
		dst[i] = d * float64((scale-32)*Levels[nibble(q[sub*16:], i%32)])
	}
}

// q4k: half d, half dmin, 12 bytes of scales, 128 bytes of nibbles. Each 32 bytes of nibbles hold
// two sub-blocks of 32, the first in the low halves.
func q4k(b []byte, dst []float64) {
	d, dmin, scales, q := halfAt(b), halfAt(b[2:]), b[4:16], b[16:144]
	for i := range dst {
		sub := i / 32
		sc, m := scaleMin(scales, sub)
		v := int(q[sub/2*32+i%32]>>(sub%2*4)) & 15
		dst[i] = d*float64(sc*v) - dmin*float64(m)
	}
}

// q5k: as q4k, with 32 bytes of fifth bits before the nibbles; bit j of byte i belongs to weight i
// of sub-block j.
func q5k(b []byte, dst []float64) {
	d, dmin, scales, high, q := halfAt(b), halfAt(b[2:]), b[4:16], b[16:48], b[48:176]
	for i := range dst {
		sub := i / 32
		sc, m := scaleMin(scales, sub)
		v := int(q[sub/2*32+i%32]>>(sub%2*4))&15 | int(high[i%32]>>sub&1)<<4
		dst[i] = d*float64(sc*v) - dmin*float64(m)
	}
}

// q6k: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, half d. Each half of
// 128 weights has 64 bytes of nibbles and 32 of pairs; its quarter k of 32 weights is in the low (k
// < 2) or high halves of the nibbles from 32*(k%2), with pair k of the bytes of pairs.
func q6k(b []byte, dst []float64) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], halfAt(b[208:])
	for i := range dst {
		half, k, l := i/128, i%128/32, i%32
		v := int(low[half*64+k%2*32+l]>>(k/2*4))&15 | int(high[half*32+l]>>(2*k)&3)<<4
		dst[i] = d * float64(int(int8(scales[i/16]))*(v-32))
	}
}
