package dequant

import (
	"encoding/binary"
	"math/bits"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// Formats with blocks of 256 weights whose magnitudes are entries of a lattice. An index stands for
// the magnitudes of 8 weights in IQ2 and of 4 in IQ3; signs and scales are apart.

// Values of the digits in an entry of a lattice.
var (
	values2    = [4]int{8, 25, 43} // no entry has a digit of 3
	values3XXS = [8]int{4, 12, 20, 28, 36, 44, 52, 62}
	values3S   = [8]int{1, 3, 5, 7, 9, 11, 13, 15}
)

// Lattice returns the entries of the lattice of an IQ2 or IQ3 type, and the magnitudes that their
// digits stand for: of each of 8 weights two bits in IQ2, of 4 three bits in IQ3, the first weight
// lowest. It returns nil for any other type. The caller must not change either.
func Lattice(t gguf.Type) (entries []uint16, values []int) {
	switch t {
	case gguf.IQ2XXS:
		return lattice2XXS[:], values2[:3]
	case gguf.IQ2XS:
		return lattice2XS[:], values2[:3]
	case gguf.IQ2S:
		return lattice2S[:], values2[:3]
	case gguf.IQ3XXS:
		return lattice3XXS[:], values3XXS[:]
	case gguf.IQ3S:
		return lattice3S[:], values3S[:]
	}
	return nil, nil
}

// digit2 and digit3 return the magnitude of weight i of an entry.
func digit2(entry uint16, i int) int                 { return values2[entry>>(2*i)&3] }
func digit3(entry uint16, i int, values *[8]int) int { return values[entry>>(3*i)&7] }

// signed returns v, or -v if bit i is set.
func signed(v int, signs byte, i int) int {
	if signs>>i&1 != 0 {
		return -v
	}
	return v
}

// evenSigns returns the eight signs that seven bits stand for: an even number of them are set.
func evenSigns(seven uint32) byte { return byte(seven | uint32(bits.OnesCount32(seven)&1)<<7) }

// nibbleAt returns nibble i of b, the low half of a byte first.
func nibbleAt(b []byte, i int) int { return int(b[i/2]>>(i%2*4)) & 15 }

// wordScale returns the scale in the top four bits of a word, whose other bits are four times seven
// bits of signs.
func wordScale(word uint32) float64 { return 0.5 + float64(word>>28) }

// iq2xxs: half d; for each 32 weights four bytes of indices and a word of signs and scale.
func iq2xxs(b []byte, dst []float64) {
	d := halfAt(b)
	for i := range dst {
		sub, eight := b[2+i/32*8:], i%32/8
		word := binary.LittleEndian.Uint32(sub[4:])
		v := signed(digit2(lattice2XXS[sub[eight]], i%8), evenSigns(word>>(7*eight)&127), i%8)
		dst[i] = d * wordScale(word) * float64(v) / 4
	}
}

// iq2xs: half d, 32 words of nine bits of index and seven bits of signs, 16 scales of four bits.
func iq2xs(b []byte, dst []float64) {
	d, scales := halfAt(b), b[66:74]
	for i := range dst {
		word := binary.LittleEndian.Uint16(b[2+i/8*2:])
		v := signed(digit2(lattice2XS[word&511], i%8), evenSigns(uint32(word>>9)), i%8)
		dst[i] = d * (0.5 + float64(nibbleAt(scales, i/16))) * float64(v) / 4
	}
}

// iq2s: half d, 32 bytes of indices, 32 bytes of signs, 8 bytes of the high two bits of indices, 16
// scales of four bits.
func iq2s(b []byte, dst []float64) {
	d, index, signs, high, scales := halfAt(b), b[2:34], b[34:66], b[66:74], b[74:82]
	for i := range dst {
		eight := i / 8
		entry := lattice2S[int(index[eight])|int(high[eight/4]>>(eight%4*2)&3)<<8]
		dst[i] = d * (0.5 + float64(nibbleAt(scales, i/16))) * float64(signed(digit2(entry, i%8), signs[eight], i%8)) / 4
	}
}

// iq3xxs: half d, 64 indices, and for each 32 weights a word of signs and scale.
func iq3xxs(b []byte, dst []float64) {
	d, index, words := halfAt(b), b[2:66], b[66:98]
	for i := range dst {
		word := binary.LittleEndian.Uint32(words[i/32*4:])
		v := signed(digit3(lattice3XXS[index[i/4]], i%4, &values3XXS), evenSigns(word>>(i%32/8*7)&127), i%8)
		dst[i] = d * wordScale(word) * float64(v) / 2
	}
}

// iq3s: half d, 64 bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 8 scales of
// four bits.
func iq3s(b []byte, dst []float64) {
	d, index, high, signs, scales := halfAt(b), b[2:66], b[66:74], b[74:106], b[106:110]
	for i := range dst {
		four := i / 4
		entry := lattice3S[int(index[four])|int(high[four/8]>>(four%8)&1)<<8]
		v := signed(digit3(entry, i%4, &values3S), signs[i/8], i%8)
		dst[i] = d * float64((1+2*nibbleAt(scales, i/32))*v)
	}
}
