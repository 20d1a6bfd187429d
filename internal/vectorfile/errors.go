package vectorfile

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat means that the bytes are not valid for a file of that name.
	ErrFormat = errors.New("not a valid vector file")
	// ErrUnsupported means that the file may be valid, but its numbers are in a form that this package does
	// not read.
	ErrUnsupported = errors.New("unsupported vector file")
	// ErrWriter means that a writer got more or fewer bytes than announced, or a shape that no file can have.
	ErrWriter = errors.New("vector file writer misused")
)

// FormatError says where in the file the error is, why the file was refused, and what to do. It
// unwraps to ErrFormat or ErrUnsupported.
type FormatError struct {
	Offset int64  // bytes from the start of the file to the error
	What   string // the error and the remedy
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
