package gguf

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"lukechampine.com/blake3"
)

// Digest is a BLAKE3 hash of 256 bits.
type Digest [32]byte

// String returns the digest as 64 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// digestDomain starts the canonical encoding and changes whenever the encoding does.
const digestDomain = "millrace model digest v1\x00"

// ModelDigest returns the digest of a model: BLAKE3 over a canonical encoding of its metadata and
// tensors. digests holds one digest per tensor, in the same order. A tensor that a model binds as
// several views (Tensor.Rows) is replaced by them in tensors: each counts with its own name,
// dimensions and digest.
//
// The encoding is, with all integers little endian and every string preceded by its length as a
// uint64:
//
//	"millrace model digest v1\0"
//	uint64 number of metadata pairs, without those below; then, sorted by the bytes of the key:
//	    key string, uint32 value type, value string encoded as GGUF encodes it after the type
//	uint64 number of tensors; then, sorted by the bytes of the name:
//	    name string, uint32 tensor type, uint32 number of dimensions, each dimension as uint64, 32 bytes of digest
//
// The pairs split.no, split.count and split.tensors.count are left out: they say how a model is
// divided into files. Two models therefore have equal digests exactly when they are the same,
// whatever the order of their tensors, their padding, their format version and their number of
// files.
func ModelDigest(m *Metadata, tensors []Tensor, digests []Digest) Digest {
	le := binary.LittleEndian
	b := []byte(digestDomain)
	keys := slices.DeleteFunc(slices.Sorted(slices.Values(m.keys)), isSplitKey)
	b = le.AppendUint64(b, uint64(len(keys)))
	for _, key := range keys {
		e := m.values[key]
		b = appendString(b, key)
		b = le.AppendUint32(b, uint32(e.value.Type))
		b = appendString(b, e.encoded)
	}
	order := make([]int, len(tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return cmp.Compare(tensors[x].Name, tensors[y].Name) })
	b = le.AppendUint64(b, uint64(len(tensors)))
	for _, i := range order {
		t := tensors[i]
		b = appendString(b, t.Name)
		b = le.AppendUint32(b, uint32(t.Type))
		b = le.AppendUint32(b, uint32(len(t.Dims)))
		for _, d := range t.Dims {
			b = le.AppendUint64(b, d)
		}
		b = append(b, digests[i][:]...)
	}
	return blake3.Sum256(b)
}
