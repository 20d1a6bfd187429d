package vectorfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// maxCodeBits is the bits of the largest codebook's codes.
const maxCodeBits = 16

// ErrCode means that a code is too large for its codebook, or packed codes differ from those that Pack
// writes.
var ErrCode = errors.New("not a valid code")

// CodeType returns the type of the codes 0 to codewords-1 outside of packed bytes: U8 up to 256
// codewords, U16 above.
func CodeType(codewords int) ElementType {
	if codewords <= 256 {
		return U8
	}
	return U16
}

// Packing is the layout of the codes of one vector of a product codebook: Subspaces codes of Bits
// bits one after another, lowest bit first, zeros after the last one. It is the layout of
// faiss::ProductQuantizer. With 8 or 16 bits it changes nothing.
type Packing struct {
	Subspaces int // 1 to MaxDimension
	Bits      int // 1 to 16
}

// PackingOf returns the packing of subspaces codes below codewords, with as few bits as they need.
func PackingOf(subspaces, codewords int) Packing {
	return Packing{Subspaces: subspaces, Bits: max(1, bits.Len(uint(codewords-1)))}
}

// RowBytes returns the bytes of one vector's codes when they are packed.
func (p Packing) RowBytes() int { return (p.Subspaces*p.Bits + 7) / 8 }

// CodeBytes returns the bytes of one vector's codes when they are not: each is a U8 or, above 8
// bits, a U16.
func (p Packing) CodeBytes() int { return p.Subspaces * p.codeSize() }

func (p Packing) codeSize() int { return (p.Bits + 7) / 8 }

// Pack writes the codes of whole vectors, CodeBytes each, to packed, RowBytes each. It refuses
// codes above Bits; the content of packed is undefined then.
func (p Packing) Pack(packed, codes []byte) error {
	if err := p.fits(len(packed), len(codes)); err != nil {
		return err
	}
	for row := 0; len(codes) > 0; row++ {
		var held uint32 // bits not written yet
		var n int       // how many, below 8 between codes
		offset := row * p.RowBytes()
		for i := range p.Subspaces {
			code := p.code(codes, i)
			if code>>p.Bits != 0 {
				return fmt.Errorf("row %d, subspace %d: code %d has more than %d bits: %w", row, i, code, p.Bits, ErrCode)
			}
			held |= code << n
			for n += p.Bits; n >= 8; n -= 8 {
				packed[offset] = byte(held)
				held >>= 8
				offset++
			}
		}
		if n > 0 {
			packed[offset] = byte(held)
		}
		codes = codes[p.CodeBytes():]
	}
	return nil
}

// Unpack is the inverse of Pack. It refuses rows that do not end in zeros.
func (p Packing) Unpack(codes, packed []byte) error {
	if err := p.fits(len(packed), len(codes)); err != nil {
		return err
	}
	for row := 0; len(codes) > 0; row++ {
		var held uint32
		var n int
		offset := row * p.RowBytes()
		for i := range p.Subspaces {
			for ; n < p.Bits; n += 8 {
				held |= uint32(packed[offset]) << n
				offset++
			}
			p.setCode(codes, i, held&(1<<p.Bits-1))
			held >>= p.Bits
			n -= p.Bits
		}
		if held != 0 {
			return fmt.Errorf("row %d: its last %d bits are not 0, so these are not %d codes of %d bits: %w", row, n, p.Subspaces, p.Bits, ErrCode)
		}
		codes = codes[p.CodeBytes():]
	}
	return nil
}

func (p Packing) code(codes []byte, i int) uint32 {
	if p.codeSize() == 1 {
		return uint32(codes[i])
	}
	return uint32(binary.LittleEndian.Uint16(codes[2*i:]))
}

func (p Packing) setCode(codes []byte, i int, code uint32) {
	if p.codeSize() == 1 {
		codes[i] = byte(code)
		return
	}
	binary.LittleEndian.PutUint16(codes[2*i:], uint16(code))
}

// fits reports whether packed bytes and codes are of the same number of vectors.
func (p Packing) fits(packed, codes int) error {
	if p.Subspaces < 1 || p.Subspaces > MaxDimension || p.Bits < 1 || p.Bits > maxCodeBits {
		return fmt.Errorf("packing of %d codes of %d bits, want 1 to %d of 1 to %d: %w", p.Subspaces, p.Bits, MaxDimension, maxCodeBits, ErrCode)
	}
	if codes%p.CodeBytes() != 0 || packed != codes/p.CodeBytes()*p.RowBytes() {
		return fmt.Errorf("%d bytes of codes and %d packed, want %d and %d for each row: %w", codes, packed, p.CodeBytes(), p.RowBytes(), ErrCode)
	}
	return nil
}
