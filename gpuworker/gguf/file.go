package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	Type   Type
	Dims   []uint64 // 1 to 4 sizes, none zero; Dims[0] is the length of a row, whose elements lie together
	Offset uint64   // bytes from the start of the file, a multiple of the file's alignment
	Size   uint64   // bytes; Offset + Size <= file size
}

// Elements returns how many elements the tensor has.
func (t Tensor) Elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// File is an open model file. Its methods are safe for concurrent use, except that Close must come after the last use
// of a view that Bytes returned.
type File struct {
	header
	size uint64
	mu   struct {
		sync.RWMutex
		closed bool
		data   []byte // the mapping, or the caller's bytes
		src    io.ReaderAt
		close  func() error
	}
}

// Open maps the file at path read-only and checks its header. It refuses everything that is not a regular file. The
// caller owns the File and closes it.
func Open(path string) (*File, error) {
	fd, err := os.OpenFile(path, OpenFlags, 0)
	if err != nil {
		return nil, fmt.Errorf("open model file %s: %w", path, errors.Unwrap(err))
	}
	f, err := OpenFile(fd)
	if err != nil {
		return nil, fmt.Errorf("open model file %s: %w", path, err)
	}
	return f, nil
}

// OpenFlags are the flags of a file for OpenFile: reading only, and non-blocking, so that a FIFO is refused instead of
// waiting for its writer.
const OpenFlags = os.O_RDONLY | unix.O_NONBLOCK

// OpenFile is Open for a file that is open already. It owns fd, also when it fails; its errors name no path.
func OpenFile(fd *os.File) (_ *File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, fd.Close())
		}
	}()
	st, err := fd.Stat()
	if err != nil {
		return nil, err
	}
	switch {
	case st.IsDir():
		return nil, malformed(0, "is a directory, want a regular file")
	case !st.Mode().IsRegular():
		return nil, malformed(0, "is a special file (%v), want a regular file", st.Mode().Type())
	case st.Size() == 0:
		return nil, malformed(0, "the file is empty: %s", again)
	case uint64(st.Size()) > uint64(^uint(0)>>1):
		return nil, unsupported(0, "file of %d bytes is larger than the address space", st.Size())
	}
	data, err := unix.Mmap(int(fd.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", st.Size(), err)
	}
	f, err := newFile(data, fd, func() error { return errors.Join(unix.Munmap(data), fd.Close()) })
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return f, nil
}

// Parse reads a file that is in memory. The File keeps data, which the caller must not change while it is in use.
func Parse(data []byte) (*File, error) {
	return newFile(data, bytes.NewReader(data), func() error { return nil })
}

func newFile(data []byte, src io.ReaderAt, closer func() error) (*File, error) {
	var h *header
	var err error
	if fault := Guard(func() { h, err = parse(unsafe.String(unsafe.SliceData(data), len(data))) }); fault != nil {
		return nil, fault
	}
	if err != nil {
		return nil, err
	}
	f := &File{header: *h, size: uint64(len(data))}
	f.mu.data, f.mu.src, f.mu.close = data, src, closer
	return f, nil
}

// Close unmaps the file. Views of it become invalid; tensors and metadata stay. Further calls do nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	f.mu.closed, f.mu.data = true, nil
	return f.mu.close()
}

// Size returns the bytes of the file.
func (f *File) Size() uint64 { return f.size }

// Version returns the format version, 2 or 3.
func (f *File) Version() uint32 { return f.version }

// Alignment returns the bytes that tensors are aligned to.
func (f *File) Alignment() uint64 { return f.alignment }

// Metadata returns the key-value pairs.
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

// Bytes returns a view of the tensor's bytes in the mapping, valid until Close, or nil after Close and for a tensor that
// is not of this file. Reading a view can fault when the file shrinks: do it inside Guard, in Go code only. To give
// bytes to C, copy them with ReadAt.
func (f *File) Bytes(t Tensor) []byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.mu.closed || t.Offset > f.size || t.Size > f.size-t.Offset {
		return nil
	}
	return f.mu.data[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
}

// ReadAt copies len(p) bytes of the tensor, from off bytes behind its start, into p. It never faults: a file that has
// shrunk gives ErrFault. Reading in pieces of 256 KiB to a few MiB is as fast as the view, and the kernel reads ahead.
func (f *File) ReadAt(t Tensor, p []byte, off uint64) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.mu.closed:
		return ErrClosed
	case t.Offset > f.size || t.Size > f.size-t.Offset || off > t.Size || uint64(len(p)) > t.Size-off:
		return fmt.Errorf("read tensor %s: %d bytes at %d are outside its %d bytes", t.Name, len(p), off, t.Size)
	}
	if n, err := f.mu.src.ReadAt(p, int64(t.Offset+off)); n < len(p) {
		return fmt.Errorf("read tensor %s: file ends or fails at offset %d: %w", t.Name, t.Offset+off+uint64(n), errors.Join(ErrFault, err))
	}
	return nil
}
