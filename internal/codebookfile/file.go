package codebookfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/safetensors"
)

// The names of the tensors.
const (
	codewordsName = "codewords"
	energiesName  = "energies"
	loadsName     = "loads"
	variancesName = "variances"
)

// File is a codebook in a file. It is safe for concurrent use.
type File struct {
	Codebook
	file   *safetensors.File
	closer io.Closer
}

// Open opens a codebook's file, until Close. Errors begin with the path.
func Open(path string) (*File, error) {
	// Check it before opening it: opening a pipe waits for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is no regular file: %w", path, ErrCodebook)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	f, err := Parse(file, info.Size())
	if err != nil {
		_ = file.Close() // Nothing was written to it.
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.closer = file
	return f, nil
}

// Parse reads a codebook's file of size bytes except its tensors. Errors match ErrCodebook, or are
// those of safetensors.
func Parse(file io.ReaderAt, size int64) (*File, error) {
	s, err := safetensors.Parse(file, size)
	if err != nil {
		return nil, err
	}
	c, err := fromMetadata(s.Metadata())
	if err != nil {
		return nil, err
	}
	codewords, ok := s.Tensor(codewordsName)
	if !ok {
		return nil, fmt.Errorf("there is no tensor %s: %w", codewordsName, ErrCodebook)
	}
	c.CodewordType = codewords.Type
	if err := c.Check(); err != nil {
		return nil, err
	}
	shape := c.shape()
	if !slices.Equal(codewords.Shape, shape) {
		return nil, fmt.Errorf("tensor %s has shape %v, and the metadata say %v: %w", codewordsName, codewords.Shape, shape, ErrCodebook)
	}
	if t, ok := s.Tensor(energiesName); ok && (t.Type != safetensors.F64 || len(t.Shape) != 1) {
		return nil, fmt.Errorf("tensor %s is %v %v, want F64 with one length: %w", energiesName, t.Type, t.Shape, ErrCodebook)
	}
	loads := shape[:len(shape)-1]
	if t, ok := s.Tensor(loadsName); ok && (t.Type != safetensors.I64 || !slices.Equal(t.Shape, loads)) {
		return nil, fmt.Errorf("tensor %s is %v %v, want I64 %v: %w", loadsName, t.Type, t.Shape, loads, ErrCodebook)
	}
	if t, ok := s.Tensor(variancesName); ok && (t.Type != safetensors.F64 || !slices.Equal(t.Shape, loads)) {
		return nil, fmt.Errorf("tensor %s is %v %v, want F64 %v: %w", variancesName, t.Type, t.Shape, loads, ErrCodebook)
	}
	return &File{Codebook: c, file: s}, nil
}

// Close closes what Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Data returns a reader of all codewords, Bytes of them. It reads them on demand.
func (f *File) Data() *io.SectionReader {
	t, _ := f.file.Tensor(codewordsName)
	return f.file.Data(t)
}

// Verify reads the codewords and compares their digest with the metadata's. A difference matches
// ErrCodebook.
func (f *File) Verify() error {
	h := blake3.New(32, nil)
	if _, err := io.Copy(h, f.Data()); err != nil {
		return err
	}
	return f.match([32]byte(h.Sum(nil)))
}

func (c Codebook) match(got [32]byte) error {
	if got != c.Digest {
		return fmt.Errorf("the codewords have digest %x, announced is %x: they are damaged, get the codebook again: %w", got, c.Digest, ErrCodebook)
	}
	return nil
}

// Energies returns the energy of each round of the training; nil if the file has none.
func (f *File) Energies() ([]float64, error) { return values[float64](f.file, energiesName) }

// Loads returns how many rows each codeword has, (subspaces, codewords); nil if the file has none.
func (f *File) Loads() ([]int64, error) { return values[int64](f.file, loadsName) }

// Variances returns the variance of each codeword's rows, (subspaces, codewords); nil if the file
// has none.
func (f *File) Variances() ([]float64, error) { return values[float64](f.file, variancesName) }

func values[T float64 | int64](file *safetensors.File, name string) ([]T, error) {
	t, ok := file.Tensor(name)
	if !ok {
		return nil, nil
	}
	list := make([]T, t.Size/8)
	if err := binary.Read(file.Data(t), binary.LittleEndian, list); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return list, nil
}
