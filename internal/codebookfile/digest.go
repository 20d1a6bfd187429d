package codebookfile

import (
	"encoding/binary"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/safetensors"
)

// digestMark begins what a public digest is of.
const digestMark = "millrace codebook digest v1\x00"

// The numbers that a public digest has for texts and types: those of the engines' header.
var (
	kinds   = map[string]uint32{Flat: 0, Product: 1}
	metrics = map[string]uint32{L2: 0, InnerProduct: 1, Cosine: 2}
	types   = map[safetensors.Type]uint32{safetensors.F32: 0, safetensors.F16: 1, safetensors.BF16: 2}
)

// PublicDigest is what workers call the codebook's digest: it covers the shape and the metric beside the codewords. c passes Check.
func (c Codebook) PublicDigest() [32]byte {
	b := []byte(digestMark)
	for _, n := range []uint32{
		kinds[c.Kind], metrics[c.Metric], uint32(c.Dimension), uint32(c.Codewords), uint32(c.Subspaces), types[c.CodewordType],
	} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return blake3.Sum256(append(b, c.Digest[:]...))
}
