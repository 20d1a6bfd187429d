package gguf

import (
	"math/bits"

	"lukechampine.com/blake3/guts"
)

// groupBytes is how much one vector call compresses: 16 chunks, a subtree of height 4.
const (
	groupBytes  = guts.MaxSIMD * guts.ChunkSize
	groupHeight = 4
)

// Hasher computes a BLAKE3 digest of a stream in the calling goroutine, at the speed of the vector unit when it is
// written to in large pieces. The zero value is ready to use. It is not safe for concurrent use.
type Hasher struct {
	base   uint64        // chunks of the message before the first one written here
	stack  [64][8]uint32 // one root per set bit of chunks, at the height of that bit
	chunks uint64        // compressed so far, a multiple of 16
	n      int           // bytes pending in group
	group  [groupBytes]byte
}

// Write adds p. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		switch {
		case h.n == groupBytes: // only now is it known not to be the last group
			h.compress(&h.group)
			h.n = 0
		case h.n == 0 && len(p) > groupBytes:
			h.compress((*[groupBytes]byte)(p))
			p = p[groupBytes:]
		default:
			k := copy(h.group[h.n:], p)
			h.n, p = h.n+k, p[k:]
		}
	}
	return total, nil
}

func (h *Hasher) compress(group *[groupBytes]byte) {
	cv := guts.ChainingValue(guts.CompressBuffer(group, groupBytes, &guts.IV, h.base+h.chunks, 0))
	height := groupHeight
	for ; h.chunks&(1<<height) != 0; height++ {
		cv = guts.ChainingValue(guts.ParentNode(h.stack[height], cv, &guts.IV, 0))
	}
	h.stack[height] = cv
	h.chunks += 1 << groupHeight
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

// subtree is the chaining value of everything written: whole chunks, a power of two of them.
func (h *Hasher) subtree() [8]uint32 { return guts.ChainingValue(h.node()) }

func root(node guts.Node) Digest {
	node.Flags |= guts.FlagRoot
	words := guts.WordsToBytes(guts.CompressNode(node))
	return Digest(words[:32])
}

// Reset forgets everything written.
func (h *Hasher) Reset() { h.base, h.chunks, h.n = 0, 0, 0 }
