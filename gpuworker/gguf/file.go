package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	Type   Type
	Dims   []uint64 // 1 to 4 sizes, none zero; Dims[0] is the row length, contiguous in memory
	Offset uint64   // bytes from the start of the part, a multiple of the part's alignment unless it is a view
	Size   uint64   // bytes; all of them are inside the part
	Part   int      // index of the file that holds it, of a model split into several; else 0

	// Run and Stride are those of a view of a stack of matrices, whose bytes do not follow one another:
	// from Offset on it has Run bytes of every Stride bytes. Both are 0 in other tensors.
	Run, Stride uint64
}

// Elements returns how many elements the tensor has.
func (t Tensor) Elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Rows returns a view of the tensor: rows [first, end) of a matrix, or of each matrix of a stack, or
// elements of a vector. Its name is NAME[first:end]. The view is a tensor like others: it can be
// read and counts in a model's digest. It fails if the tensor has more than three dimensions or is
// a view of a stack, or if it has fewer rows.
func (t Tensor) Rows(first, end uint64) (Tensor, error) {
	last := len(t.Dims) - 1 // the last dimension that is not 1
	for last > 0 && t.Dims[last] == 1 {
		last--
	}
	at, row, matrices := min(last, 1), uint64(1), uint64(1) // the dimension that counts rows; elements of a row
	if last > 0 {
		row = t.Dims[0]
	}
	if last > 1 {
		matrices = t.Dims[2]
	}
	rows := t.Dims[at]
	if last > 2 || t.Run != 0 || row%t.Type.BlockSize() != 0 || first >= end || end > rows {
		return Tensor{}, fmt.Errorf("%w: tensor %s of type %v and dimensions %v has no rows %d to %d", ErrFormat, t.Name, t.Type, t.Dims, first, end)
	}
	size := t.Type.RowBytes(row)
	view := t
	view.Name = fmt.Sprintf("%s[%d:%d]", t.Name, first, end)
	view.Dims = slices.Clone(t.Dims[:last+1])
	view.Dims[at] = end - first
	view.Offset += first * size
	view.Size = matrices * (end - first) * size
	if matrices > 1 {
		view.Run, view.Stride = (end-first)*size, rows*size
	}
	return view, nil
}

// span returns how many bytes there are from the tensor's first byte to its last.
func (t Tensor) span() uint64 {
	if t.Run == 0 {
		return t.Size
	}
	return (t.Size/t.Run-1)*t.Stride + t.Run
}

// place returns where byte off of the tensor is in the part, and how many of the n bytes from there
// on follow one another.
func (t Tensor) place(off, n uint64) (at, run uint64) {
	if t.Run == 0 {
		return t.Offset + off, n
	}
	within := off % t.Run
	return t.Offset + off/t.Run*t.Stride + within, min(n, t.Run-within)
}

// File is an open model file, or the open files of a split model. Its methods are safe for
// concurrent use, except that Close must follow the last use of a view that Bytes returned.
type File struct {
	header
	size uint64 // of all parts
	mu   struct {
		sync.RWMutex
		closed bool
		parts  []source // one, unless the model is split
	}
}

// source holds the bytes of one file.
type source struct {
	data  []byte // the mapping, or the caller's bytes
	src   io.ReaderAt
	close func() error
}

func (s source) size() uint64 { return uint64(len(s.data)) }

// header reads and checks the header.
func (s source) header() (h *header, err error) {
	if fault := Guard(func() { h, err = parse(unsafe.String(unsafe.SliceData(s.data), len(s.data))) }); fault != nil {
		return nil, fault
	}
	return h, err
}

// Open maps the file at path read-only and checks its header. It refuses everything but a regular
// file. If the name is that of the first part of a split model, Open also opens the other parts,
// which must be in the same folder. The caller closes the File.
func Open(path string) (*File, error) {
	dir, name := filepath.Split(path)
	prefix, number, count, split := ParsePartName(name)
	if !split {
		fd, err := openReadOnly(path)
		if err != nil {
			return nil, err
		}
		f, err := OpenFile(fd)
		if err != nil {
			return nil, fmt.Errorf("open model file %s: %w", path, err)
		}
		return f, nil
	}
	if number != 1 {
		return nil, fmt.Errorf("open model file %s: %w: it is part %d of a split model: give its first part, %s",
			path, ErrFormat, number, PartName(prefix, 1, count))
	}
	if err := CheckPartCount(count); err != nil {
		return nil, fmt.Errorf("open model file %s: %w", path, err)
	}
	fds := make([]*os.File, 0, count)
	for i := range count {
		fd, err := openReadOnly(dir + PartName(prefix, i+1, count))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: all %d parts must be in one folder", err, count), closeFiles(fds))
		}
		fds = append(fds, fd)
	}
	f, err := OpenParts(fds)
	if err != nil {
		return nil, fmt.Errorf("open model file %s: %w", path, err)
	}
	return f, nil
}

func openReadOnly(path string) (*os.File, error) {
	fd, err := os.OpenFile(path, OpenFlags, 0)
	if err != nil {
		return nil, fmt.Errorf("open model file %s: %w", path, errors.Unwrap(err))
	}
	return fd, nil
}

func closeFiles(fds []*os.File) (err error) {
	for _, fd := range fds {
		err = errors.Join(err, fd.Close())
	}
	return err
}

// OpenFlags are the flags of a file for OpenFile: read-only, and non-blocking so that a FIFO is
// refused instead of waiting for its writer.
const OpenFlags = os.O_RDONLY | unix.O_NONBLOCK

// OpenFile is Open for one open file. It owns fd, even if it fails. Its errors name no path.
func OpenFile(fd *os.File) (*File, error) {
	src, err := mapFile(fd)
	if err != nil {
		return nil, err
	}
	f, err := newFile(src)
	if err != nil {
		return nil, errors.Join(err, src.close())
	}
	return f, nil
}

// mapFile maps an open file, which it owns, even if it fails.
func mapFile(fd *os.File) (_ source, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, fd.Close())
		}
	}()
	st, err := fd.Stat()
	if err != nil {
		return source{}, err
	}
	switch {
	case st.IsDir():
		return source{}, malformed(0, "is a directory, want a regular file")
	case !st.Mode().IsRegular():
		return source{}, malformed(0, "is a special file (%v), want a regular file", st.Mode().Type())
	case st.Size() == 0:
		return source{}, malformed(0, "the file is empty: %s", again)
	case uint64(st.Size()) > uint64(^uint(0)>>1):
		return source{}, unsupported(0, "file of %d bytes is larger than the address space", st.Size())
	}
	data, err := unix.Mmap(int(fd.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return source{}, fmt.Errorf("map %d bytes: %w", st.Size(), err)
	}
	return source{data, fd, func() error { return errors.Join(unix.Munmap(data), fd.Close()) }}, nil
}

// Parse reads a file in memory. The File keeps data, which the caller must not change while it is
// in use.
func Parse(data []byte) (*File, error) { return newFile(inMemory(data)) }

func inMemory(data []byte) source {
	return source{data, bytes.NewReader(data), func() error { return nil }}
}

func newFile(src source) (*File, error) {
	h, err := src.header()
	if err != nil {
		return nil, err
	}
	f := &File{header: *h, size: src.size()}
	f.mu.parts = []source{src}
	return f, nil
}

// Close unmaps the file. Views of it become invalid; tensors and metadata stay. Further calls do
// nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	var err error
	for _, p := range f.mu.parts {
		err = errors.Join(err, p.close())
	}
	f.mu.closed, f.mu.parts = true, nil
	return err
}

// Size returns the bytes of the file, of all parts if the model is split.
func (f *File) Size() uint64 { return f.size }

// Version returns the format version, 2 or 3.
func (f *File) Version() uint32 { return f.version }

// Metadata returns the key-value pairs, of a split model those of its first part without split.*.
func (f *File) Metadata() *Metadata { return &f.meta }

// Tensors returns all tensors in file order. The caller must not change the slice.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Bytes returns a view of the tensor's bytes in the mapping, valid until Close. It returns nil
// after Close and for a tensor of another file. Reading a view can fault if the file shrinks: do it
// inside Guard, in Go code only. To give bytes to C, copy them with ReadAt. Bytes that do not follow
// one another are copied, so that for them Bytes itself can fault.
func (f *File) Bytes(t Tensor) []byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.holds(t) {
		return nil
	}
	data := f.mu.parts[t.Part].data
	if t.Run == 0 {
		return data[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
	}
	out := make([]byte, 0, t.Size)
	for uint64(len(out)) < t.Size {
		at, run := t.place(uint64(len(out)), t.Size)
		out = append(out, data[at:at+run]...)
	}
	return out
}

// holds reports whether the tensor's bytes are inside an open part. The caller holds the lock.
func (f *File) holds(t Tensor) bool {
	if t.Part < 0 || t.Part >= len(f.mu.parts) {
		return false
	}
	size := f.mu.parts[t.Part].size()
	return t.Offset <= size && t.span() <= size-t.Offset
}

// ReadAt copies len(p) bytes of the tensor, from offset off, into p. It never faults: if the file
// has shrunk it returns ErrFault. Reading in pieces of 256 KiB to a few MiB is as fast as the view,
// with the kernel's read-ahead.
func (f *File) ReadAt(t Tensor, p []byte, off uint64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.mu.closed:
		return ErrClosed
	case !f.holds(t) || off > t.Size || uint64(len(p)) > t.Size-off:
		return fmt.Errorf("read tensor %s: %d bytes at %d are outside its %d bytes", t.Name, len(p), off, t.Size)
	}
	for len(p) > 0 {
		at, run := t.place(off, uint64(len(p)))
		if n, err := f.mu.parts[t.Part].src.ReadAt(p[:run], int64(at)); n < int(run) {
			where := "file"
			if len(f.mu.parts) > 1 {
				where = fmt.Sprintf("part %d of %d", t.Part+1, len(f.mu.parts))
			}
			return fmt.Errorf("read tensor %s: %s ends or fails at offset %d: %w", t.Name, where, at+uint64(n), errors.Join(ErrFault, err))
		}
		p, off = p[run:], off+run
	}
	return nil
}
