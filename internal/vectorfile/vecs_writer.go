package vectorfile

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
)

const writeBuffer = 64 << 10

// VecsWriter writes rows of 4-byte elements, each after its dimension: .fvecs from F32, .ivecs from
// U32. It is not safe for concurrent use.
type VecsWriter struct {
	w         *bufio.Writer
	dimension int
	left      int   // bytes missing of the current row; 0 between rows
	err       error // the first one; every later call returns it
}

// NewVecsWriter returns a writer of rows of dimension elements, 1 to MaxDimension. It buffers;
// Close flushes and does not close w. Without any row the file is empty, and readers refuse it
// because it has no dimension.
func NewVecsWriter(w io.Writer, dimension int) (*VecsWriter, error) {
	if dimension < 1 || dimension > MaxDimension {
		return nil, fmt.Errorf("write rows of dimension %d, want 1 to %d: %w", dimension, MaxDimension, ErrWriter)
	}
	return &VecsWriter{w: bufio.NewWriterSize(w, writeBuffer), dimension: dimension}, nil
}

// Write appends p to the elements, which are little endian. p may begin and end inside a row.
func (v *VecsWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && v.err == nil {
		if v.left == 0 {
			_, v.err = v.w.Write(binary.LittleEndian.AppendUint32(nil, uint32(v.dimension)))
			v.left = 4 * v.dimension
			continue
		}
		var k int
		k, v.err = v.w.Write(p[:min(len(p), v.left)])
		p, n, v.left = p[k:], n+k, v.left-k
	}
	return n, v.err
}

// Close checks that the last row is complete, and flushes.
func (v *VecsWriter) Close() error {
	if v.err == nil && v.left > 0 {
		v.err = fmt.Errorf("%d bytes of the last row were not written: %w", v.left, ErrWriter)
	}
	if v.err == nil {
		v.err = v.w.Flush()
	}
	return v.err
}
