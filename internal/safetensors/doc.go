// Package safetensors reads and writes files of the safetensors format: named tensors and a dictionary of texts.
//
// Parse checks the whole header before anything is returned: after a nil error every name is unique, every tensor has as many
// bytes as its type and shape say, and together they make up the rest of the file, with no byte between them or behind. Data then
// reads a tensor from the file; nothing but the header is held. Write is the inverse and streams; equal content gives equal bytes:
// keys are sorted, and tensors lie by type, the widest first, and then by name, as the format's own library puts them, so that
// each is aligned to its elements.
//
// A file is foreign input. Every refusal is a *FormatError with the byte at fault, what is wrong there and what to do about it,
// and matches ErrFormat or ErrUnsupported. It is stricter than the format asks where files differ only by accident or intent: a
// header has at most MaxHeader bytes, an integer is digits, a tensor has a name and at most MaxRank lengths, and no text holds
// U+FFFD, which stands for what could not be decoded.
//
// The package knows types and sizes. It knows nothing of what a tensor is for.
package safetensors
