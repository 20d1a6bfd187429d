package dequant

// Formats with blocks of 256 weights.

// scaleMin returns scale and minimum, of six bits each, of sub-block j of 8, packed into 12 bytes: the first four of each
// in the low six bits of bytes 0-3 and 4-7; the others with their low four bits in bytes 8-11, scale in the low half,
// and their high two bits on top of the first eight bytes.
func scaleMin(s []byte, j int) (scale, minimum int) {
	if j < 4 {
		return int(s[j] & 63), int(s[j+4] & 63)
	}
	return int(s[j+4]&15 | s[j-4]>>6<<4), int(s[j+4]>>4 | s[j]>>6<<4)
}

// q4k: half d, half dmin, 12 bytes of scales, 128 bytes of nibbles. Each 32 bytes of nibbles hold two sub-blocks of 32,
// the first in the low halves.
func q4k(b []byte, dst []float64) {
	d, dmin, scales, q := halfAt(b), halfAt(b[2:]), b[4:16], b[16:144]
	for i := range dst {
		sub := i / 32
		sc, m := scaleMin(scales, sub)
		v := int(q[sub/2*32+i%32]>>(sub%2*4)) & 15
		dst[i] = d*float64(sc*v) - dmin*float64(m)
	}
}

// q5k: as q4k, with 32 bytes of fifth bits before the nibbles; bit j of byte i belongs to weight i of sub-block j.
func q5k(b []byte, dst []float64) {
	d, dmin, scales, high, q := halfAt(b), halfAt(b[2:]), b[4:16], b[16:48], b[48:176]
	for i := range dst {
		sub := i / 32
		sc, m := scaleMin(scales, sub)
		v := int(q[sub/2*32+i%32]>>(sub%2*4))&15 | int(high[i%32]>>sub&1)<<4
		dst[i] = d*float64(sc*v) - dmin*float64(m)
	}
}

// q6k: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, half d. Each half of 128 weights has 64
// bytes of nibbles and 32 of pairs; its quarter k of 32 weights is in the low (k < 2) or high halves of the nibbles from
// 32*(k%2), with pair k of the bytes of pairs.
func q6k(b []byte, dst []float64) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], halfAt(b[208:])
	for i := range dst {
		half, k, l := i/128, i%128/32, i%32
		v := int(low[half*64+k%2*32+l]>>(k/2*4))&15 | int(high[half*32+l]>>(2*k)&3)<<4
		dst[i] = d * float64(int(int8(scales[i/16]))*(v-32))
	}
}
