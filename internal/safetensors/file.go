package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

const (
	// MaxHeader bounds the bytes of a header.
	MaxHeader = 1 << 20
	// MaxRank bounds the dimensions of a shape.
	MaxRank = 8

	lengthBytes  = 8 // of the header's length, at the start of the file
	metadataName = "__metadata__"
)

// Tensor describes a tensor of a file.
type Tensor struct {
	Name   string // not empty
	Type   Type
	Shape  []int64 // 0 to MaxRank lengths of 0 or more; without lengths the tensor has one element
	Offset int64   // bytes from the start of the file to the first element
	Size   int64   // bytes
}

// File is the parsed header of a file. It is safe for concurrent use.
type File struct {
	file     io.ReaderAt
	metadata map[string]string
	tensors  []Tensor // by Offset
}

// Parse reads and validates the header of a file of size bytes. It allocates a small multiple of
// the header's length, at most MaxHeader.
func Parse(file io.ReaderAt, size int64) (*File, error) {
	if size < lengthBytes {
		return nil, malformed(0, "the file has %d bytes, and the length of its header alone %d: %s", size, lengthBytes, copyAgain)
	}
	var lead [lengthBytes]byte
	if err := read(file, lead[:], 0); err != nil {
		return nil, err
	}
	length := binary.LittleEndian.Uint64(lead[:])
	if left := uint64(size - lengthBytes); length > left {
		return nil, malformed(0, "the header has %d bytes, and %d are left of the file: %s", length, left, copyAgain)
	}
	if length > MaxHeader {
		return nil, unsupported(0, "the header has %d bytes, allowed are %d: keep texts out of it", length, MaxHeader)
	}
	header := make([]byte, length)
	if err := read(file, header, lengthBytes); err != nil {
		return nil, err
	}
	metadata, entries, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	tensors, err := place(entries, lengthBytes+int64(length), size)
	if err != nil {
		return nil, err
	}
	return &File{file: file, metadata: metadata, tensors: tensors}, nil
}

// place checks that the entries' data fill the file from start to size.
func place(entries []entry, start, size int64) ([]Tensor, error) {
	// Empty tensors begin where the next one does.
	slices.SortStableFunc(entries, func(a, b entry) int {
		if a.begin != b.begin {
			return cmp.Compare(a.begin, b.begin)
		}
		return cmp.Compare(a.end, b.end)
	})
	tensors := make([]Tensor, 0, len(entries))
	next := int64(0)
	for _, e := range entries {
		switch want, ok := bytesOf(e.Type, e.Shape); {
		case !ok || e.end < e.begin || e.end-e.begin != want:
			return nil, malformed(e.position, "tensor %q of shape %v in %v has the data from %d to %d, which is not its size: %s",
				e.Name, e.Shape, e.Type, e.begin, e.end, saveAgain)
		case e.begin < next:
			return nil, malformed(e.position, "the data of tensor %q begin at %d, and those before it end at %d: %s", e.Name, e.begin, next, saveAgain)
		case e.begin > next:
			return nil, malformed(e.position, "no tensor owns the data from %d to %d, in front of tensor %q: %s", next, e.begin, e.Name, saveAgain)
		case e.end > size-start:
			return nil, malformed(e.position, "the data of tensor %q end at %d, and the file has %d bytes for data: %s", e.Name, e.end, size-start, copyAgain)
		}
		next = e.end
		e.Offset, e.Size = start+e.begin, e.end-e.begin
		tensors = append(tensors, e.Tensor)
	}
	if left := size - start - next; left > 0 {
		return nil, malformed(start+next, "%d bytes follow the last tensor: %s", left, saveAgain)
	}
	return tensors, nil
}

// Metadata returns a copy of the file's texts by key.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Tensors returns all tensors in the order of their data. The caller owns the slice, but not the
// shapes in it.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor returns the tensor of a name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i := slices.IndexFunc(f.tensors, func(t Tensor) bool { return t.Name == name })
	if i < 0 {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Data returns a reader of a tensor's bytes. It reads from the file on demand.
func (f *File) Data(t Tensor) *io.SectionReader { return io.NewSectionReader(f.file, t.Offset, t.Size) }

// bytesOf returns the bytes of a tensor. It returns false if no file can hold them.
func bytesOf(t Type, shape []int64) (int64, bool) {
	// A length of 0 makes the product 0 whatever the others are.
	if slices.Contains(shape, 0) {
		return 0, true
	}
	size := t.Size()
	for _, n := range shape {
		if size > math.MaxInt64/n {
			return 0, false
		}
		size *= n
	}
	return size, true
}

func read(file io.ReaderAt, p []byte, at int64) error {
	n, err := file.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return malformed(at+int64(n), "the file has become shorter since it was opened: leave it alone while it is read")
	}
	return fmt.Errorf("read %d bytes at byte %d: %w", len(p), at, err)
}
