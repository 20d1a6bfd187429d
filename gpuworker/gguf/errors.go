package gguf

import (
	"errors"
	"fmt"
)

var (
	// ErrFormat means that the bytes are not a well-formed GGUF file.
	ErrFormat = errors.New("not a valid gguf file")
	// ErrUnsupported means that the file may be well formed but uses a version, byte order or
	// tensor type that this package does not read.
	ErrUnsupported = errors.New("unsupported gguf file")
	// ErrValueType means that a metadata key holds a value of another type than requested.
	ErrValueType = errors.New("wrong metadata type")
	// ErrFault means that mapped bytes could not be read: the file was truncated, or its storage
	// failed, after Open.
	ErrFault = errors.New("model file cannot be read any more")
	// ErrClosed means that the file was used after Close.
	ErrClosed = errors.New("model file is closed")
)

// FormatError states where and why a file was refused. It unwraps to ErrFormat or ErrUnsupported.
type FormatError struct {
	Offset uint64 // of the field in question, from the start of the file
	What   string // the problem
	Kind   error  // ErrFormat or ErrUnsupported
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%v: offset %d: %s", e.Kind, e.Offset, e.What)
}

func (e *FormatError) Unwrap() error { return e.Kind }

func malformed(offset uint64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrFormat}
}

func unsupported(offset uint64, format string, args ...any) error {
	return &FormatError{Offset: offset, What: fmt.Sprintf(format, args...), Kind: ErrUnsupported}
}
