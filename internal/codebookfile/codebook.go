package codebookfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/internal/safetensors"
	"github.com/millrace/millrace/internal/vectorfile"
)

// The texts of the metadata.
const (
	Flat    = "FLAT"
	Product = "PRODUCT"

	L2           = "L2"
	InnerProduct = "INNER_PRODUCT"
	Cosine       = "COSINE"

	Lloyd    = "LLOYD"
	Annealed = "ANNEALED"
)

const (
	// MaxCodewords is the most codewords of a subspace.
	MaxCodewords = 65_536
	// MaxValues bounds codewords times dimension.
	MaxValues = 1<<31 - 1
)

// ErrCodebook means that a file is well formed but not a codebook, or a codebook cannot be written.
var ErrCodebook = errors.New("not a valid codebook")

// Codebook has the metadata of a file's codewords.
type Codebook struct {
	Kind         string // Flat or Product
	Metric       string // L2, InnerProduct or Cosine; Product: L2
	Dimension    int    // 1 to vectorfile.MaxDimension
	Codewords    int    // of each subspace, 1 to MaxCodewords; times Dimension at most MaxValues
	Subspaces    int    // a divisor of Dimension; Flat: 1
	CodewordType safetensors.Type
	Digest       [32]byte // BLAKE3 of the codewords' bytes

	// How it was trained; all zero if that is not known.
	ElementType vectorfile.ElementType // of the rows that it was trained on
	Algorithm   string                 // Lloyd or Annealed
	Seed        uint64
	Numerics    string // not empty
}

// trained reports whether it is known how the codebook was trained.
func (c Codebook) trained() bool {
	return c.ElementType != 0 || c.Algorithm != "" || c.Seed != 0 || c.Numerics != ""
}

// Bytes returns the size of the codewords.
func (c Codebook) Bytes() int64 {
	return int64(c.Codewords) * int64(c.Dimension) * c.CodewordType.Size()
}

// Check returns an error for the first field that is out of range.
func (c Codebook) Check() error {
	bad := func(format string, args ...any) error { return fmt.Errorf(format+": %w", append(args, ErrCodebook)...) }
	switch {
	case c.Kind != Flat && c.Kind != Product:
		return bad("kind is %q, want %s or %s", c.Kind, Flat, Product)
	case !slices.Contains([]string{L2, InnerProduct, Cosine}, c.Metric):
		return bad("metric is %q, want %s, %s or %s", c.Metric, L2, InnerProduct, Cosine)
	case c.Kind == Product && c.Metric != L2:
		return bad("metric is %s, and a %s codebook supports %s only", c.Metric, Product, L2)
	case c.Dimension < 1 || c.Dimension > vectorfile.MaxDimension:
		return bad("dimension is %d, want 1 to %d", c.Dimension, vectorfile.MaxDimension)
	case c.Codewords < 1 || c.Codewords > MaxCodewords:
		return bad("codewords are %d, want 1 to %d", c.Codewords, MaxCodewords)
	case c.Subspaces < 1 || c.Dimension%c.Subspaces != 0:
		return bad("subspaces are %d, want a divisor of the dimension %d", c.Subspaces, c.Dimension)
	case c.Kind == Flat && c.Subspaces != 1:
		return bad("subspaces are %d, and a %s codebook has 1", c.Subspaces, Flat)
	case int64(c.Codewords)*int64(c.Dimension) > MaxValues:
		return bad("%d codewords of dimension %d have more than %d values", c.Codewords, c.Dimension, MaxValues)
	case c.CodewordType != safetensors.F32 && c.CodewordType != safetensors.F16 && c.CodewordType != safetensors.BF16:
		return bad("the codewords are of type %v, want F32, F16 or BF16", c.CodewordType)
	case !c.trained():
		return nil
	case c.Algorithm != Lloyd && c.Algorithm != Annealed:
		return bad("algorithm is %q, want %s or %s", c.Algorithm, Lloyd, Annealed)
	case c.ElementType < vectorfile.F32 || c.ElementType > vectorfile.U8:
		return bad("element_type is %v, want F32, F16, BF16, U8 or I8", c.ElementType)
	case c.Numerics == "":
		return bad("numerics is empty")
	}
	return nil
}

// shape returns the lengths of the tensor codewords; those of loads are all but the last.
func (c Codebook) shape() []int64 {
	shape := []int64{int64(c.Subspaces), int64(c.Codewords), int64(c.Dimension / c.Subspaces)}
	if c.Kind == Flat {
		return shape[1:]
	}
	return shape
}

// digestMark begins the bytes that a public digest covers.
const digestMark = "millrace codebook digest v1\x00"

// The numbers for texts and types in a public digest: those of engine.h.
var (
	kinds   = map[string]uint32{Flat: 0, Product: 1}
	metrics = map[string]uint32{L2: 0, InnerProduct: 1, Cosine: 2}
	types   = map[safetensors.Type]uint32{safetensors.F32: 0, safetensors.F16: 1, safetensors.BF16: 2}
)

// PublicDigest returns the digest that workers use: it covers the shape and the metric, too. c must
// pass Check.
func (c Codebook) PublicDigest() [32]byte {
	b := []byte(digestMark)
	for _, n := range []uint32{
		kinds[c.Kind], metrics[c.Metric], uint32(c.Dimension), uint32(c.Codewords), uint32(c.Subspaces), types[c.CodewordType],
	} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return blake3.Sum256(append(b, c.Digest[:]...))
}
