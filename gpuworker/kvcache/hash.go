package kvcache

import (
	"hash/maphash"
	"math/bits"
)

// hasher makes chain hashes: each block's follows from the one before and its own ids. Its secrets differ from process to
// process, so that nobody can send prompts that collide; a collision costs time and nothing else, because nodes are compared.
type hasher struct {
	seed maphash.Seed
	a, b uint64
}

func newHasher() hasher {
	seed := maphash.MakeSeed()
	return hasher{seed: seed, a: maphash.String(seed, "a"), b: maphash.String(seed, "b") | 1}
}

// root is where the chains of a salt begin.
func (h hasher) root(salt string) uint64 { return maphash.String(h.seed, salt) }

// next is the hash of a block behind a chain with the hash parent: for each pair of ids a multiplication, folded.
func (h hasher) next(parent uint64, ids []int32) uint64 {
	x := parent ^ h.a
	for i := 0; i < len(ids); i += 2 {
		pair := uint64(uint32(ids[i]))
		if i+1 < len(ids) {
			pair |= uint64(uint32(ids[i+1])) << 32
		}
		high, low := bits.Mul64(x^pair, h.b)
		x = bits.RotateLeft64(high^low, 23) + h.a
	}
	return x
}
