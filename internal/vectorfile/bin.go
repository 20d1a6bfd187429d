package vectorfile

import (
	"encoding/binary"
	"io"
)

const binHead = 8 // bytes: the number of rows and the dimension, a uint32 each

// newBin returns the rows of a file that begins with their number and dimension.
func newBin(file io.ReaderAt, size int64, e ElementType) (*Matrix, error) {
	m := &Matrix{element: e, file: file, start: binHead}
	if size < binHead {
		return nil, malformed(0, "the file has %d bytes, and its head alone %d: copy it anew", size, binHead)
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
			"copy it anew, or correct the number of rows in its first four bytes if it is a part of a larger file",
			m.rows, d, e, want, have, have/m.stride)
	}
	return m, nil
}
