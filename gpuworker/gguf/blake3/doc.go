// Package blake3 computes chaining values of whole subtrees of BLAKE3, so that several goroutines
// can hash one message.
//
// Value hashes the bytes of one subtree. With AVX-512, sixteen chunks are in the lanes of a vector,
// and so are sixteen parents of every level but the topmost. Elsewhere lukechampine.com/blake3/guts
// computes the same values.
//
// The caller handles the message's end and its root with guts, because these differ from other
// subtrees.
package blake3
