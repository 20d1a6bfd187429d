package vectorfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
)

const (
	npyMagic = "\x93NUMPY"
	// maxNpyHeader bounds the bytes of the dictionary to those of version 1.0. A plain array has
	// about 100.
	maxNpyHeader = math.MaxUint16
)

// npyRows returns the vectors of an array.
func npyRows(file io.ReaderAt, size int64) (*Matrix, error) {
	return newNpy(file, size, func(a array) (rows, dimension int64, err error) {
		switch {
		case !a.element.isVector():
			return 0, 0, unsupported(a.offset.descr, "the array is of type %q, and vectors are f4, f2, u1 or i1: save x.astype('<f4')", a.descr)
		case len(a.shape) == 1 && a.shape[0] > MaxDimension:
			return 0, 0, unsupported(a.offset.shape, "an array with one dimension is one row, and %d elements are more than the %d of a row: "+
				"save x.reshape(-1, 1) if these are rows of one element", a.shape[0], MaxDimension)
		case len(a.shape) == 1:
			return 1, a.shape[0], nil
		}
		return a.shape[0], a.shape[1], nil
	})
}

// npyCodes returns the codes of an array.
func npyCodes(file io.ReaderAt, size int64) (*Matrix, error) {
	return newNpy(file, size, func(a array) (rows, dimension int64, err error) {
		switch {
		case !a.element.isCode():
			return 0, 0, unsupported(a.offset.descr, "the array is of type %q, and codes are u1, u2 or u4: save x.astype('<u4')", a.descr)
		case len(a.shape) == 1:
			return a.shape[0], 1, nil
		}
		return a.shape[0], a.shape[1], nil
	})
}

// array is the header of an array.
type array struct {
	descr   string
	element ElementType // 0 if this package has no such type
	fortran bool
	shape   []int64 // one or two lengths, not negative
	offset  struct {
		descr, fortran, shape int64 // bytes from the start of the file
	}
	data int64 // bytes from the start of the file to the elements
}

func newNpy(file io.ReaderAt, size int64, rule func(array) (rows, dimension int64, err error)) (*Matrix, error) {
	m := &Matrix{file: file}
	header, start, err := m.npyHeader(size)
	if err != nil {
		return nil, err
	}
	a, err := parseNpyHeader(header, start)
	if err != nil {
		return nil, err
	}
	if a.fortran {
		return nil, unsupported(a.offset.fortran, "the array is in Fortran order: save numpy.ascontiguousarray(x)")
	}
	rows, d, err := rule(a)
	if err != nil {
		return nil, err
	}
	if d < 1 || d > MaxDimension {
		return nil, unsupported(a.offset.shape, "shape %v has rows of %d elements, allowed is 1 to %d: save an array of that width", a.shape, d, MaxDimension)
	}
	m.element, m.dimension, m.rows, m.start = a.element, int(d), rows, a.data
	m.stride = int64(m.RowBytes())
	have := size - m.start
	if rows > have/m.stride {
		return nil, malformed(m.start, "shape %v in %q is %d rows of %d bytes and the file has %d bytes for them: it is cut, copy it again",
			a.shape, a.descr, rows, m.stride, have)
	}
	if want := rows * m.stride; want != have {
		return nil, malformed(m.start+want, "%d bytes follow the array: save one array to a file", have-want)
	}
	return m, nil
}

// npyHeader returns the dictionary before the data, and its offset.
func (m *Matrix) npyHeader(size int64) (header []byte, start int64, err error) {
	var lead [12]byte // magic, version, length of the header in 2 bytes or in 4
	if err := m.read(lead[:min(size, int64(len(lead)))], 0); err != nil {
		return nil, 0, err
	}
	if bytes.HasPrefix(lead[:], []byte("PK\x03\x04")) {
		return nil, 0, unsupported(0, "the file is a zip archive, perhaps .npz: unpack it, and give one of its .npy files")
	}
	if string(lead[:len(npyMagic)]) != npyMagic || size < 10 {
		return nil, 0, malformed(0, "the file does not begin as an array that numpy.save wrote: check that the name says the right format")
	}
	var length int64
	switch version := [2]byte(lead[6:8]); version {
	case [2]byte{1, 0}:
		start, length = 10, int64(binary.LittleEndian.Uint16(lead[8:]))
	case [2]byte{2, 0}, [2]byte{3, 0}:
		start, length = 12, int64(binary.LittleEndian.Uint32(lead[8:]))
	default:
		return nil, 0, unsupported(6, "the format has version %d.%d, and 1.0, 2.0 and 3.0 are read: save it with numpy.save", version[0], version[1])
	}
	if length > maxNpyHeader {
		return nil, 0, unsupported(8, "the header has %d bytes, allowed are %d: a plain array needs about 100", length, maxNpyHeader)
	}
	if length > size-start {
		return nil, 0, malformed(8, "the header has %d bytes, and %d are left of the file: it is cut, copy it again", length, max(0, size-start))
	}
	header = make([]byte, length)
	return header, start, m.read(header, start)
}

// npyElement returns the type that a descr names, 0 if neither vectors nor codes have it.
func npyElement(descr string) (ElementType, error) {
	order, name := "", descr
	if descr != "" && strings.ContainsRune("<>|=", rune(descr[0])) {
		order, name = descr[:1], descr[1:]
	}
	e := map[string]ElementType{"f4": F32, "f2": F16, "i1": I8, "u1": U8, "u2": U16, "u4": U32}[name]
	switch {
	case strings.HasPrefix(name, "O"):
		return 0, fmt.Errorf("the array holds Python objects (%q), which are programs: save x.astype('<f4')", descr)
	case strings.HasPrefix(name, "V"):
		return 0, fmt.Errorf("the array is of type %q, bytes without a meaning, as numpy saves bfloat16 and records: save x.astype('<f4')", descr)
	case order == ">" && e.Size() != 1:
		return 0, fmt.Errorf("the array is big endian (%q): save x.astype(x.dtype.newbyteorder('<'))", descr)
	case order != "<" && e.Size() > 1:
		return 0, fmt.Errorf("type %q does not say in which order the bytes lie: save x.astype('<%s')", descr, name)
	}
	return e, nil
}
