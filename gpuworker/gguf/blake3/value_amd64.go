package blake3

import (
	"unsafe"

	"golang.org/x/sys/cpu"
	"lukechampine.com/blake3/guts"
)

// hash16AVX512 hashes sixteen inputs of blocks blocks of 64 bytes each. Input i is at data+stride*i,
// and its counter is chunk+step*i, chunk a multiple of 16. If the first and the last block are one
// block, their flags are or-ed.
//
//go:noescape
func hash16AVX512(values *[lanes][8]uint32, data *byte, stride, blocks uintptr, chunk uint64, step, first, last uint32)

const lanes = 16

// value is the subtree of at most Best bytes.
func value(data []byte, chunk uint64) [8]uint32 {
	if !cpu.X86.HasAVX512F {
		return portable(data, chunk)
	}
	var values [Best / guts.ChunkSize][8]uint32
	n := len(data) / guts.ChunkSize
	for i := 0; i < n; i += lanes { // in place: pairs are read before their results are written
		hash16AVX512((*[lanes][8]uint32)(values[i:]), &data[i*guts.ChunkSize], guts.ChunkSize, guts.ChunkSize/guts.BlockSize,
			chunk+uint64(i), 1, guts.FlagChunkStart, guts.FlagChunkEnd)
	}
	for n > 1 {
		n /= 2
		for i := 0; i < n; i += lanes { // values in place: pairs are read before what they become is written
			pairs := (*byte)(unsafe.Pointer(&values[2*i]))
			hash16AVX512((*[lanes][8]uint32)(values[i:]), pairs, guts.BlockSize, 1, 0, 0, guts.FlagParent, 0)
		}
	}
	return values[0]
}
