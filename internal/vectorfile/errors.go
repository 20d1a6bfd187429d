package vectorfile

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat means that the bytes are not what a file of that name must hold.
	ErrFormat = errors.New("not a valid vector file")
	// ErrUnsupported means that the file may be in order but keeps its numbers in a way that this package does not read.
	ErrUnsupported = errors.New("unsupported vector file")
	// ErrWriter means that a writer was given more or fewer bytes than announced, or a shape that no file can have.
	ErrWriter = errors.New("vector file writer misused")
)

// FormatError says where in the file and why it was refused, and what to do. It unwraps to ErrFormat or ErrUnsupported.
type FormatError struct {
	Offset int64  // bytes from the start of the file to what is at fault
	What   string // what is wrong there: what to do
	Kind   error  // ErrFormat or ErrUnsupported
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Kind, e.Offset, e.What)
}

func (e *FormatError) Unwrap() error { return e.Kind }

func malformed(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrFormat}
}

func unsupported(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrUnsupported}
}
