package vectorfile

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
)

const prefixBytes = 4 // bytes of the dimension before a row, an int32

// newVecs returns the rows of a file in which each row follows its dimension. place converts the
// 4-byte elements of a row to type e; nil copies them.
func newVecs(file io.ReaderAt, size int64, e ElementType, place func(dst, src []byte) error) (*Matrix, error) {
	m := &Matrix{element: e, file: file, prefixed: true, place: place}
	switch {
	case size == 0:
		return nil, malformed(0, "the file is empty, so it has no dimension: files without rows can be .npy or .fbin")
	case size < prefixBytes:
		return nil, malformed(0, "the file ends in the dimension of its first row, after %d bytes: copy it again", size)
	}
	d, err := m.prefix(0)
	if err != nil {
		return nil, err
	}
	if d < 1 || d > MaxDimension {
		if s := int32(bits.ReverseBytes32(uint32(d))); s >= 1 && s <= MaxDimension {
			return nil, unsupported(0, "the first row has dimension %d, or %d if the file is big endian: write it little endian", d, s)
		}
		return nil, malformed(0, "the first row has dimension %d, allowed is 1 to %d: check that the name says the right format", d, MaxDimension)
	}
	m.dimension = int(d)
	m.stride = prefixBytes + int64(d)*int64(e.Size())
	m.rows = size / m.stride
	if rest := size % m.stride; rest != 0 {
		return nil, m.uneven(rest)
	}
	return m, nil
}

// uneven returns why the file has rest bytes after its last whole row: a row has another dimension,
// or is cut. If the rest begins with the common dimension, the row is taken for cut; else the file
// is read up to the wrong row.
func (m *Matrix) uneven(rest int64) error {
	last := m.rows * m.stride // offset of the rest
	probe := last
	if rest < prefixBytes {
		probe -= m.stride // The rest is shorter than a prefix, and the first row is not: there is a row before it.
	}
	d, err := m.prefix(probe)
	if err != nil {
		return err
	}
	if int(d) != m.dimension {
		if err := m.findMixed(last + rest); err != nil {
			return err
		}
	}
	return malformed(last, "row %d ends after %d of %d bytes: the file is cut, copy it again", m.rows, rest, m.stride)
}

// findMixed returns an error that names the first row of the file's size bytes with another
// dimension than the first; nil if all have the same.
func (m *Matrix) findMixed(size int64) error {
	in := bufio.NewReaderSize(io.NewSectionReader(m.file, 0, size), 1<<20)
	var prefix [prefixBytes]byte
	for row := int64(0); ; row++ {
		if _, err := io.ReadFull(in, prefix[:]); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read row %d: %w", row, err)
		}
		if d := int32(binary.LittleEndian.Uint32(prefix[:])); int(d) != m.dimension {
			return mixed(row*m.stride, row, d, m.dimension)
		}
		if _, err := in.Discard(int(m.stride - prefixBytes)); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read row %d: %w", row, err)
		}
	}
}

// prefix reads the dimension at offset at.
func (m *Matrix) prefix(offset int64) (int32, error) {
	var p [prefixBytes]byte
	err := m.read(p[:], offset)
	return int32(binary.LittleEndian.Uint32(p[:])), err
}

func mixed(offset, row int64, got int32, want int) error {
	return malformed(offset, "row %d has dimension %d, the rows before it %d: write rows of one dimension into one file", row, got, want)
}

// placeExact turns int32 elements into float32.
func placeExact(dst, src []byte) error {
	for i := 0; i < len(src); i += 4 {
		v := int32(binary.LittleEndian.Uint32(src[i:]))
		if int64(float32(v)) != int64(v) {
			return fmt.Errorf("element %d is %d, which float32 cannot hold: scale the rows and write them as .fvecs", i/4, v)
		}
		binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(float32(v)))
	}
	return nil
}

// placeUnsigned refuses int32 elements that are not valid as codes.
func placeUnsigned(dst, src []byte) error {
	for i := 0; i < len(src); i += 4 {
		if v := int32(binary.LittleEndian.Uint32(src[i:])); v < 0 {
			return fmt.Errorf("code %d is %d, which says that none was found: leave such rows out", i/4, v)
		}
	}
	copy(dst, src)
	return nil
}

const binHead = 8 // bytes of the number of rows and the dimension, a uint32 each

// newBin returns the rows of a file that begins with their number and dimension.
func newBin(file io.ReaderAt, size int64, e ElementType) (*Matrix, error) {
	m := &Matrix{element: e, file: file, start: binHead}
	if size < binHead {
		return nil, malformed(0, "the file has %d bytes, and its head alone %d: copy it again", size, binHead)
	}
	var head [binHead]byte
	if err := m.read(head[:], 0); err != nil {
		return nil, err
	}
	m.rows = int64(binary.LittleEndian.Uint32(head[:]))
	d := binary.LittleEndian.Uint32(head[4:])
	if d < 1 || d > MaxDimension {
		return nil, malformed(4, "the dimension is %d, allowed is 1 to %d: check that the name says the right format", d, MaxDimension)
	}
	m.dimension = int(d)
	m.stride = int64(d) * int64(e.Size())
	if have, want := size-binHead, m.rows*m.stride; have != want {
		return nil, malformed(0, "%d rows of dimension %d in %v are %d bytes and the file has %d, which would be %d rows: "+
			"copy it again, or correct the number of rows in its first four bytes if it is a part of a larger file",
			m.rows, d, e, want, have, have/m.stride)
	}
	return m, nil
}
