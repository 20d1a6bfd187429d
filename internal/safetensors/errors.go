package safetensors

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat reports that the bytes are not a well-formed safetensors file.
	ErrFormat = errors.New("not a valid safetensors file")
	// ErrUnsupported reports a file that may be well-formed, but exceeds a limit of this package or
	// has an unknown type.
	ErrUnsupported = errors.New("unsupported safetensors file")
	// ErrWrite reports that no file can hold the tensors or texts passed to Write.
	ErrWrite = errors.New("cannot be written as safetensors")
)

// FormatError says where a file was refused, why, and what to do. It unwraps to ErrFormat or
// ErrUnsupported.
type FormatError struct {
	Offset int64  // bytes from the start of the file to the error, or to what follows it
	What   string // the error and the remedy
	Kind   error  // ErrFormat or ErrUnsupported
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Kind, e.Offset, e.What)
}

func (e *FormatError) Unwrap() error { return e.Kind }

// What to do about a malformed file and about a damaged one.
const (
	saveAgain = "save it again with a library of the format"
	copyAgain = "copy it again"
)

func malformed(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrFormat}
}

func unsupported(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrUnsupported}
}
