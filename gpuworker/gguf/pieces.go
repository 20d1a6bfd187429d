package gguf

import (
	"math/bits"

	"lukechampine.com/blake3/guts"

	"github.com/millrace/millrace/gpuworker/gguf/blake3"
)

// Pieces computes the BLAKE3 digest of a message whose pieces several goroutines hash, in any
// order.
type Pieces struct {
	size, piece uint64
	roots       [][8]uint32 // of all pieces but the last
	last        Hasher      // of the last piece, which ends the message
}

// NewPieces prepares the digest of size bytes in pieces of piece bytes, a power of two of at least
// 16 KiB. The last piece may be shorter. Another piece size is a bug of the caller and panics.
func NewPieces(size, piece uint64) *Pieces {
	if piece < blake3.Least || piece&(piece-1) != 0 {
		panic("gguf: pieces are a power of two of at least 16 KiB")
	}
	return &Pieces{size: size, piece: piece, roots: make([][8]uint32, (max(size, 1)-1)/piece)}
}

// Hash hashes piece number i, whose bytes are data. Every piece must be hashed exactly once, by any
// goroutine.
func (p *Pieces) Hash(i int, data []byte) {
	base := uint64(i) * p.piece / guts.ChunkSize
	if i == len(p.roots) {
		p.last.base = base
		_, _ = p.last.Write(data) // never fails
		return
	}
	p.roots[i] = blake3.Value(data, base)
}

// Sum returns the digest after every piece was hashed.
func (p *Pieces) Sum() Digest {
	var stack [64][8]uint32 // one root per set bit of the pieces so far
	for i, cv := range p.roots {
		height := 0
		for ; i&(1<<height) != 0; height++ {
			cv = blake3.Parent(stack[height], cv)
		}
		stack[height] = cv
	}
	node := p.last.node()
	for rest := uint64(len(p.roots)); rest != 0; rest &= rest - 1 {
		node = guts.ParentNode(stack[bits.TrailingZeros64(rest)], guts.ChainingValue(node), &guts.IV, 0)
	}
	return root(node)
}
