package vectors

import (
	"encoding/binary"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Digest is the digest of a codebook that people see, from its shape and BLAKE3 of its bytes.
func Digest(d engine.CodebookDesc, raw engine.Digest) engine.Digest {
	text := []byte("millrace codebook digest v1\x00")
	for _, n := range []int{int(d.Kind), int(d.Metric), d.Dimension, d.Codewords, d.Subspaces, int(d.Type)} {
		text = binary.LittleEndian.AppendUint32(text, uint32(n))
	}
	return blake3.Sum256(append(text, raw[:]...))
}
