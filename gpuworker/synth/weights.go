package synth

import (
	"cmp"
	"encoding/binary"
	"io"
	"math"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// pieceBytes is about how much is generated between two writes.
const pieceBytes = 256 << 10

func (t tensor) elements() uint64 {
	n := uint64(1)
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// write writes all of the tensor's bytes to w.
func (t tensor) write(w io.Writer, s stream) error {
	if t.fill != nil {
		b := make([]byte, 0, 4*t.elements())
		for i := range t.elements() {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(t.fill(s, int(i))))
		}
		_, err := w.Write(b)
		return err
	}
	fill := newFill(t.typ, cmp.Or(t.gain, 1)/math.Sqrt(float64(t.dims[0])))
	group := 8 * t.typ.BlockBytes() // whole blocks and whole words
	piece := make([]byte, max(1, pieceBytes/group)*group)
	for offset, size := uint64(0), t.typ.RowBytes(t.elements()); offset < size; {
		n := min(size-offset, uint64(len(piece)))
		fill(piece[:(n+group-1)/group*group], s, offset/8)
		t.scaleRows(piece[:n], offset)
		if _, err := w.Write(piece[:n]); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

// scaleRows multiplies bytes of the tensor from offset on, whole numbers, by the factors of their rows.
func (t tensor) scaleRows(b []byte, offset uint64) {
	if t.rows == nil {
		return
	}
	for i := uint64(0); i < uint64(len(b)); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(b[i:])) * t.rows[(offset+i)/4/t.dims[0]]
		binary.LittleEndian.PutUint32(b[i:], math.Float32bits(v))
	}
}

// fill makes weights: it fills dst, whose length is a multiple of 8 and of a block, from the
// stream's word first on.
type fill func(dst []byte, s stream, first uint64)

// newFill returns the fill of weights of a type with standard deviation std.
func newFill(t gguf.Type, std float64) fill {
	switch t {
	case gguf.F32:
		return floats32(std)
	case gguf.F16:
		return floats16(std, halfBits)
	case gguf.BF16:
		return floats16(std, func(v float64) uint16 { return uint16((math.Float32bits(float32(v)) + 0x8000) >> 16) })
	case gguf.Q8_0:
		return scaled(sums, int(t.BlockBytes()), 0, scalesOnly(std/std8, false))
	}
	scales, offset := blockScales(t, std)
	return scaled(words, int(t.BlockBytes()), offset, scales)
}

// words fills dst with random bits.
func words(dst []byte, s stream, first uint64) {
	for ; len(dst) >= 8; dst = dst[8:] {
		binary.LittleEndian.PutUint64(dst, s.word(first))
		first++
	}
}

// std8 is the standard deviation of the sum of two uniform seven-bit numbers.
var std8 = math.Sqrt(2 * (128*128 - 1) / 12.0)

// sums fills dst with bytes that are each the sum of two seven-bit numbers less 127: from -127 to
// 127, like quants of eight bits, and more often near zero than far from it.
func sums(dst []byte, s stream, first uint64) {
	const sevens, ones, tops = 0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080
	for ; len(dst) >= 8; dst = dst[8:] {
		sum := s.word(2*first)&sevens + s.word(2*first+1)&sevens // at most 254 a byte: no carries
		binary.LittleEndian.PutUint64(dst, (sum+ones)^tops)      // less 127, modulo 256
		first++
	}
}

// variants is how many different sets of scales the blocks of a tensor draw from.
const variants = 256

// scaled returns a fill that fills blocks with bits and then writes one of the sets of scales at
// offset at of each. The byte that bits left there selects the set, times an odd number so that a
// frequent byte does not select an extreme set.
func scaled(bits fill, block, offset int, sets [][]byte) fill {
	var table [variants][18]byte
	n := len(sets[0])
	for i, set := range sets {
		copy(table[i][:], set)
	}
	return func(dst []byte, s stream, first uint64) {
		bits(dst, s, first)
		for ; len(dst) >= block; dst = dst[block:] {
			b := dst[offset : offset+n]
			set := &table[b[0]*157]
			switch n {
			case 2:
				b[0], b[1] = set[0], set[1]
			case 4:
				b[0], b[1], b[2], b[3] = set[0], set[1], set[2], set[3]
			default:
				copy(b, set[:])
			}
		}
	}
}

// levels is how many values of the normal distribution floats are drawn from.
const levels = 4096

// normal returns quantile (i + 1/2)/levels of the normal distribution with standard deviation std.
func normal(i int, std float64) float64 {
	return std * math.Sqrt2 * math.Erfinv((2*float64(i)+1)/levels-1)
}

// floats16 returns a fill of 16-bit floats in the given encoding, four from a word.
func floats16(std float64, encode func(float64) uint16) fill {
	var table [levels]uint16
	for i := range table {
		table[i] = encode(normal(i, std))
	}
	return func(dst []byte, s stream, first uint64) {
		for ; len(dst) >= 8; dst = dst[8:] {
			w := s.word(first)
			first++
			binary.LittleEndian.PutUint64(dst, uint64(table[w%levels])|uint64(table[w>>16&(levels-1)])<<16|
				uint64(table[w>>32&(levels-1)])<<32|uint64(table[w>>48&(levels-1)])<<48)
		}
	}
}

// floats32 returns a fill of floats, two from a word. The low bits of the mantissa are random too.
func floats32(std float64) fill {
	const low = 0xfff
	var table [levels]uint32
	for i := range table {
		table[i] = math.Float32bits(float32(normal(i, std))) &^ low
	}
	return func(dst []byte, s stream, first uint64) {
		for ; len(dst) >= 8; dst = dst[8:] {
			w := s.word(first)
			first++
			a, b := table[w%levels]|uint32(w>>12&low), table[w>>32&(levels-1)]|uint32(w>>44&low)
			binary.LittleEndian.PutUint64(dst, uint64(a)|uint64(b)<<32)
		}
	}
}

// stream is a counter-based generator: word i is a hash of the tensor's key and i, so that any part
// of a tensor can be generated without the parts before it.
type stream struct{ key uint64 }

const golden = 0x9e3779b97f4a7c15

// newStream returns the stream of tensor number index of a model.
func newStream(seed, index uint64) stream {
	return stream{mix(mix(seed+golden) ^ mix(index*golden+1))}
}

// word returns the word at position i.
func (s stream) word(i uint64) uint64 { return mix(s.key + i*golden) }

// mix is the output function of SplitMix64, a bijection of 64 bits in which every input bit affects
// every output bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
