package gguf

import (
	"math/bits"

	"lukechampine.com/blake3/guts"

	"github.com/millrace/millrace/gpuworker/gguf/blake3"
)

// Hasher computes a BLAKE3 digest of a stream in the calling goroutine, at the speed of the vector
// unit if written in large pieces. The zero value is ready. It is not safe for concurrent use.
type Hasher struct {
	base   uint64        // chunks of the message before the first one written here
	stack  [64][8]uint32 // one root per set bit of chunks, at the height of that bit
	chunks uint64        // hashed so far, a multiple of those of a group
	n      int           // bytes pending in group
	group  [blake3.Least]byte
}

// Write adds p. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		switch {
		case h.n == len(h.group): // only now is it known not to be the last group
			h.subtree(h.group[:])
			h.n = 0
		case h.n == 0 && len(p) > len(h.group):
			size := 1 << (bits.Len(uint(len(p)-1)) - 1) // the largest subtree that leaves a byte for the end
			if h.chunks != 0 {
				size = min(size, guts.ChunkSize<<bits.TrailingZeros64(h.chunks))
			}
			h.subtree(p[:size])
			p = p[size:]
		default:
			k := copy(h.group[h.n:], p)
			h.n, p = h.n+k, p[k:]
		}
	}
	return total, nil
}

// subtree adds a power of two of chunks that divides the number of chunks so far.
func (h *Hasher) subtree(data []byte) {
	value, n := blake3.Value(data, h.base+h.chunks), uint64(len(data))/guts.ChunkSize
	height := bits.TrailingZeros64(n)
	for ; h.chunks&(1<<height) != 0; height++ {
		value = blake3.Parent(h.stack[height], value)
	}
	h.stack[height] = value
	h.chunks += n
}

// Sum returns the digest of what has been written; more may be written afterwards.
func (h *Hasher) Sum() Digest { return root(h.node()) }

// node is the root of everything written, not yet marked as one.
func (h *Hasher) node() guts.Node {
	node := guts.CompressBuffer(&h.group, h.n, &guts.IV, h.base+h.chunks, 0)
	for rest := h.chunks; rest != 0; rest &= rest - 1 {
		node = guts.ParentNode(h.stack[bits.TrailingZeros64(rest)], guts.ChainingValue(node), &guts.IV, 0)
	}
	return node
}

func root(node guts.Node) Digest {
	node.Flags |= guts.FlagRoot
	words := guts.WordsToBytes(guts.CompressNode(node))
	return Digest(words[:32])
}

// Reset forgets everything written.
func (h *Hasher) Reset() { h.base, h.chunks, h.n = 0, 0, 0 }
