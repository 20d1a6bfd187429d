// Package gguf reads and writes GGUF model files, versions 2 and 3, little endian.
//
// Open maps a file and checks its whole header before it returns. After a nil error every name is
// unique, every tensor is aligned, inside the file and disjoint from the others, and every size was
// computed without overflow. Metadata is copied to the Go heap and stays valid. Tensor bytes are
// read from the file with ReadAt, or viewed in place with Bytes until Close. A model that is split
// into several files (parts.go) is one File. Writer is the inverse, and streams.
//
// A model file is hostile input. Every refusal is a *FormatError that names a byte offset and
// matches ErrFormat or ErrUnsupported. Memory is bounded by a small multiple of the header's own
// size, whatever its counts claim. If a file shrinks under the mapping, reading the view raises a
// memory fault. Guard turns it into ErrFault for Go code; code outside Go must be given copies,
// never the view.
//
// The package handles blocks and bytes. It has no knowledge of architectures, of the purpose of a
// tensor, or of arithmetic on weights.
package gguf
