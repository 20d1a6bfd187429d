package vectorfile

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// formats are the file name endings of rows; those of codes are .npy and .ivecs.
const formats = ".npy, .fvecs, .bvecs, .ivecs, .fbin, .f16bin, .u8bin or .i8bin"

// File is a Matrix in a file that is open until Close.
type File struct {
	*Matrix
	file *os.File
}

// Close closes the file. Reading rows afterwards fails.
func (f *File) Close() error { return f.file.Close() }

// OpenRows opens a file of vectors in the format that its name ends in. Errors begin with the path.
func OpenRows(path string) (*File, error) { return open(path, NewRows) }

// OpenCodes opens a file of codes, .npy or .ivecs. Errors begin with the path.
func OpenCodes(path string) (*File, error) { return open(path, NewCodes) }

func open(path string, parse func(string, io.ReaderAt, int64) (*Matrix, error)) (*File, error) {
	// Check it before opening it: opening a pipe waits for its writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, unsupported(0, "it is no regular file: rows are read more than once, so write them to a file first"))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := parse(path, file, info.Size())
	if err != nil {
		_ = file.Close() // Nothing was written to it.
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{Matrix: m, file: file}, nil
}

// NewRows returns the vectors of a file of size bytes, in the format that name ends in.
func NewRows(name string, file io.ReaderAt, size int64) (*Matrix, error) {
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case ".npy":
		return npyRows(file, size)
	case ".fvecs":
		return newVecs(file, size, F32, nil)
	case ".bvecs":
		return newVecs(file, size, U8, nil)
	case ".ivecs":
		return newVecs(file, size, F32, placeExact)
	case ".fbin":
		return newBin(file, size, F32)
	case ".f16bin":
		return newBin(file, size, F16)
	case ".u8bin":
		return newBin(file, size, U8)
	case ".i8bin":
		return newBin(file, size, I8)
	default:
		return nil, unsupported(0, "a name that ends in %q says no known format: unpack or convert it to %s", ending, formats)
	}
}

// NewCodes returns the codes of a file of size bytes, in the format that name ends in.
func NewCodes(name string, file io.ReaderAt, size int64) (*Matrix, error) {
	switch ending := strings.ToLower(filepath.Ext(name)); ending {
	case ".npy":
		return npyCodes(file, size)
	case ".ivecs":
		return newVecs(file, size, U32, placeUnsigned)
	default:
		return nil, unsupported(0, "a name that ends in %q says no format of codes: convert it to .npy or .ivecs", ending)
	}
}
