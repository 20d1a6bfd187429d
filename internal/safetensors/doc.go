// Package safetensors reads and writes files of the safetensors format: named tensors and a
// dictionary of texts.
//
// Parse validates the whole header. If it returns no error, every name is unique, every tensor has
// the bytes of its type and shape, and the tensors fill the rest of the file without gaps. Data
// reads a tensor from the file; only the header is kept in memory. Write is the inverse and
// streams. Equal content gives equal bytes: keys are sorted, and tensors are ordered by type, the
// widest first, and then by name, like the format's own library does, so that each is aligned to
// its elements.
//
// A file is untrusted input. Every refusal is a *FormatError with the offset, the error and the
// remedy, and matches ErrFormat or ErrUnsupported. The package is stricter than the format in a few
// places where files differ only by accident or intent: a header has at most MaxHeader bytes, an
// integer consists of digits, a tensor has a name and at most MaxRank dimensions, and no text
// contains U+FFFD, which replaces what could not be decoded.
//
// The package knows types and sizes, and not the purpose of a tensor.
package safetensors
