// Package blake3 computes chaining values of whole subtrees of BLAKE3, whose bytes several goroutines can hash at once.
//
// Value takes the bytes of one subtree. Where the processor has AVX-512, sixteen chunks lie in the lanes of a vector, and so
// do sixteen parents of every level but the topmost; elsewhere lukechampine.com/blake3/guts computes. The values are the
// same.
//
// It refuses to know where a message ends: its last bytes and its root are the caller's, who has guts for them.
package blake3
