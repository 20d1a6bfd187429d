package safetensors

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat means that the bytes are not a well-formed safetensors file.
	ErrFormat = errors.New("not a valid safetensors file")
	// ErrUnsupported means that the file may be well formed but exceeds a limit of this package or has a type that it does not
	// know.
	ErrUnsupported = errors.New("unsupported safetensors file")
	// ErrWrite means that Write was given tensors or texts that no file can hold.
	ErrWrite = errors.New("cannot be written as safetensors")
)

// FormatError says where in the file and why it was refused, and what to do. It unwraps to ErrFormat or ErrUnsupported.
type FormatError struct {
	Offset int64  // bytes from the start of the file to what is at fault, or to what follows it
	What   string // what is wrong there: what to do
	Kind   error  // ErrFormat or ErrUnsupported
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: byte %d: %s", e.Kind, e.Offset, e.What)
}

func (e *FormatError) Unwrap() error { return e.Kind }

// What to do about a file that somebody made wrong, and about one that was damaged.
const (
	saveAgain = "save it again with a library of the format"
	copyAgain = "copy it anew"
)

func malformed(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrFormat}
}

func unsupported(offset int64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrUnsupported}
}
