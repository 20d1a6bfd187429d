package vectorfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// gatherBytes bounds the memory of one ReadRows, besides dst, if rows have gaps between them in the
// file, unless a single row is longer.
const gatherBytes = 64 << 10

// Matrix is Rows rows of Dimension elements of one type in a file. It is immutable and safe for
// concurrent use.
type Matrix struct {
	element   ElementType
	dimension int   // 1 to MaxDimension
	rows      int64 // start + rows*stride is the file's size
	file      io.ReaderAt
	start     int64 // bytes before the first row
	stride    int64 // bytes from a row to the next
	prefixed  bool  // the dimension lies in front of every row, in 4 bytes
	// place converts one row of the file to the form that the caller gets; nil if that is a copy.
	// The row's position is added to its error.
	place func(dst, src []byte) error
}

// ElementType returns the type of the elements that ReadRows gives.
func (m *Matrix) ElementType() ElementType { return m.element }

// Dimension returns the number of elements in a row, 1 to MaxDimension.
func (m *Matrix) Dimension() int { return m.dimension }

// Rows returns the number of rows, which may be 0.
func (m *Matrix) Rows() int64 { return m.rows }

// RowBytes returns the bytes of one row as ReadRows gives it.
func (m *Matrix) RowBytes() int { return m.dimension * m.element.Size() }

// ReadRows reads row first and those that follow it into dst, little endian and without gaps. It
// returns how many: as many as dst has room for, fewer only at the end of the matrix. After the end
// it returns io.EOF, and io.ErrShortBuffer if dst has no room for a row. After an error the content
// of dst is undefined.
func (m *Matrix) ReadRows(dst []byte, first int64) (int, error) {
	n := int64(len(dst) / m.RowBytes())
	switch {
	case first < 0:
		return 0, fmt.Errorf("read row %d: rows are counted from 0", first)
	case first >= m.rows:
		return 0, io.EOF
	case n == 0:
		return 0, io.ErrShortBuffer
	}
	n = min(n, m.rows-first)
	dst = dst[:n*int64(m.RowBytes())]
	if m.prefixed {
		return int(n), m.gather(dst, first)
	}
	return int(n), m.read(dst, m.start+first*m.stride)
}

// gather fills dst with rows that have prefixes between them in the file.
func (m *Matrix) gather(dst []byte, first int64) error {
	row, stride := m.RowBytes(), int(m.stride)
	scratch := make([]byte, min(len(dst)/row, max(1, gatherBytes/stride))*stride)
	for len(dst) > 0 {
		lines := scratch[:min(len(scratch), len(dst)/row*stride)]
		if err := m.read(lines, m.start+first*m.stride); err != nil {
			return err
		}
		for ; len(lines) > 0; lines = lines[stride:] {
			offset := m.start + first*m.stride
			if d := int32(binary.LittleEndian.Uint32(lines)); int(d) != m.dimension {
				return mixed(offset, first, d, m.dimension)
			}
			if m.place == nil {
				copy(dst, lines[4:stride])
			} else if err := m.place(dst[:row], lines[4:stride]); err != nil {
				return unsupported(offset, "row %d: %v", first, err)
			}
			dst = dst[row:]
			first++
		}
	}
	return nil
}

// read fills p from offset at.
func (m *Matrix) read(p []byte, offset int64) error {
	n, err := m.file.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return malformed(offset+int64(n), "the file has become shorter since it was opened: leave it alone while it is read")
	}
	return fmt.Errorf("read %d bytes at byte %d: %w", len(p), offset, err)
}
