package vectorfile

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// npyAlign is the alignment of numpy's elements in bytes; npyRoom the digits that numpy reserves
// for the first length, so that an array can grow in place.
const (
	npyAlign = 64
	npyRoom  = 21
)

// NpyWriter writes one array as numpy.save does, byte for byte. It is not safe for concurrent use.
type NpyWriter struct {
	w    *bufio.Writer
	left int64 // bytes that the shape still wants
	err  error // the first one; every later call returns it
}

// NewNpyWriter writes the header of an array in C order with one length or two, each 0 or more. The
// elements follow through Write, little endian. .npy has no BF16. The writer buffers; Close flushes
// and does not close w.
func NewNpyWriter(w io.Writer, e ElementType, shape ...int64) (*NpyWriter, error) {
	descr, ok := map[ElementType]string{F32: "<f4", F16: "<f2", I8: "|i1", U8: "|u1", U16: "<u2", U32: "<u4"}[e]
	if !ok {
		return nil, fmt.Errorf("write .npy: it has no type for %v: %w", e, ErrWriter)
	}
	if len(shape) != 1 && len(shape) != 2 {
		return nil, fmt.Errorf("write .npy: shape %v, want one length or two: %w", shape, ErrWriter)
	}
	size := int64(e.Size())
	lengths := make([]string, len(shape))
	for i, n := range shape {
		if n < 0 || n > 0 && size > math.MaxInt64/n {
			return nil, fmt.Errorf("write .npy: no file holds shape %v: %w", shape, ErrWriter)
		}
		size *= n
		lengths[i] = strconv.FormatInt(n, 10)
	}
	tuple := strings.Join(lengths, ", ")
	if len(lengths) == 1 {
		tuple += ","
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, tuple)
	header += strings.Repeat(" ", npyRoom-len(lengths[0]))
	lead := len(npyMagic) + 2 + 2
	// numpy pads after the reserved digits even if no padding is missing but the newline.
	pad := npyAlign - (lead+len(header)+1)%npyAlign
	header += strings.Repeat(" ", pad) + "\n"

	n := &NpyWriter{w: bufio.NewWriterSize(w, writeBuffer), left: size}
	head := append([]byte(npyMagic), 1, 0)
	head = binary.LittleEndian.AppendUint16(head, uint16(len(header)))
	_, n.err = n.w.Write(append(head, header...))
	return n, n.err
}

// Write appends p to the elements. p may begin and end inside a row. If there are more bytes than
// the shape has, it returns an error and writes none of p.
func (n *NpyWriter) Write(p []byte) (int, error) {
	if n.err != nil {
		return 0, n.err
	}
	if int64(len(p)) > n.left {
		n.err = fmt.Errorf("write .npy: %d bytes where %d are left of the shape: %w", len(p), n.left, ErrWriter)
		return 0, n.err
	}
	var k int
	k, n.err = n.w.Write(p)
	n.left -= int64(k)
	return k, n.err
}

// Close checks that no element is missing, and flushes.
func (n *NpyWriter) Close() error {
	if n.err == nil && n.left > 0 {
		n.err = fmt.Errorf("write .npy: %d bytes of the shape were not written: %w", n.left, ErrWriter)
	}
	if n.err == nil {
		n.err = n.w.Flush()
	}
	return n.err
}
