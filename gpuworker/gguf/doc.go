// Package gguf reads and writes GGUF model files, versions 2 and 3, little endian.
//
// Open maps a file and checks its whole header before anything is returned: after a nil error every name is unique,
// every tensor lies aligned and alone inside the file, and every size has been computed without overflow. Metadata is
// copied to the Go heap once and stays valid for ever; tensor bytes are read from the file with ReadAt, or viewed in
// place with Bytes until Close. Writer is the inverse, and streams.
//
// A model file is hostile input. Every refusal is a *FormatError that names a byte offset and matches ErrFormat or
// ErrUnsupported; memory is bounded by a small multiple of the header's own size, whatever its counts claim. A file
// that shrinks under the mapping raises a memory fault in whoever touches the view: Guard turns it into ErrFault for Go
// code, but code outside Go must be given copies, never the view.
//
// The package knows blocks and bytes. It knows nothing of architectures, of what a tensor is for, or of arithmetic on
// weights.
package gguf
