package filewatch

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// MaxBytes bounds a file: a hundred thousand keys.
const MaxBytes = 16 << 20

// File reads a regular file of at most MaxBytes. Anything else is an error that names it. File does
// not block on a pipe without a writer, which would delay every caller of Current, and does not
// read a device, which has no end.
func File(path string) (text string, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file", path)
	}
	read, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	switch {
	case err != nil:
		return "", err
	case len(read) > MaxBytes:
		return "", fmt.Errorf("%s has more than %d bytes", path, MaxBytes)
	}
	return string(read), nil
}
