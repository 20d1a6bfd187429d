package gguf

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"lukechampine.com/blake3"
)

// Digest is a BLAKE3 hash of 256 bits.
type Digest [32]byte

// String returns the digest as 64 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// hashPiece is how many bytes are read and hashed at a time; they stay in a core's second-level cache.
const hashPiece = 256 << 10

// TensorDigests returns the digest of every tensor's file bytes, in the order of Tensors. Up to workers tensors are
// hashed at once, the largest first; progress, if not nil, is called with bytes hashed so far and in all, from several
// goroutines. It stops early when ctx ends. The bytes are copied as they are read, so a file that shrinks gives ErrFault.
func (f *File) TensorDigests(ctx context.Context, workers int, progress func(done, total uint64)) ([]Digest, error) {
	order := make([]int, len(f.tensors))
	var total uint64
	for i, t := range f.tensors {
		order[i] = i
		total += t.Size
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(f.tensors[b].Size, f.tensors[a].Size) })

	digests := make([]Digest, len(f.tensors))
	var next, done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range max(1, min(workers, len(order))) {
		group.Go(func() error {
			piece := make([]byte, hashPiece)
			h := new(Hasher)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(order) {
					return nil
				}
				t := f.tensors[order[i]]
				h.Reset()
				for off := uint64(0); off < t.Size; {
					if err := ctx.Err(); err != nil {
						return err
					}
					p := piece[:min(t.Size-off, hashPiece)]
					if err := f.ReadAt(t, p, off); err != nil {
						return err
					}
					_, _ = h.Write(p) // never fails
					off += uint64(len(p))
					if n := done.Add(int64(len(p))); progress != nil {
						progress(uint64(n), total)
					}
				}
				digests[order[i]] = h.Sum()
			}
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return digests, nil
}

// digestDomain begins the canonical encoding and changes whenever the encoding does.
const digestDomain = "millrace model digest v1\x00"

// ModelDigest returns the digest of a model: BLAKE3 over a canonical encoding of its metadata and tensors. digests holds
// one digest per tensor, in the same order.
//
// The encoding is, with all integers little endian and every string preceded by its length as a uint64:
//
//	"millrace model digest v1\0"
//	uint64 number of metadata pairs; then, sorted by the bytes of the key:
//	    key string, uint32 value type, value string encoded as GGUF encodes it behind the type
//	uint64 number of tensors; then, sorted by the bytes of the name:
//	    name string, uint32 tensor type, uint32 number of dimensions, each dimension as uint64, 32 bytes of digest
//
// Two files therefore have equal digests exactly when they describe the same model, whatever the order of their parts,
// their padding and their format version.
func ModelDigest(m *Metadata, tensors []Tensor, digests []Digest) Digest {
	le := binary.LittleEndian
	b := []byte(digestDomain)
	b = le.AppendUint64(b, uint64(len(m.keys)))
	for _, key := range slices.Sorted(slices.Values(m.keys)) {
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
