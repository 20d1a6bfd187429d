package vq

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"lukechampine.com/blake3"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// Codebook encodes and decodes.
type Codebook struct {
	desc   engine.CodebookDesc
	bytes  []byte
	values []float64 // (subspaces, codewords, width)
}

// NewCodebook checks and copies codewords.
func NewCodebook(desc engine.CodebookDesc, codewords []byte) (*Codebook, error) {
	if err := rules.CheckCodebook(desc); err != nil {
		return nil, err
	}
	if uint64(len(codewords)) != desc.Bytes() {
		return nil, fmt.Errorf("%d bytes of codewords, want %d: %w", len(codewords), desc.Bytes(), engine.ErrInvalid)
	}
	values := Decode(desc.Type, codewords)
	for i, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("codeword %d has %v at element %d: %w", i/desc.Width(), v, i%desc.Width(), engine.ErrInvalid)
		}
	}
	return Resident(desc, codewords), nil
}

// Resident returns a codebook of resident bytes without checking them.
func Resident(desc engine.CodebookDesc, codewords []byte) *Codebook {
	return &Codebook{desc: desc, bytes: slices.Clone(codewords), values: Decode(desc.Type, codewords)}
}

// part returns the codewords of a subspace.
func (b *Codebook) part(s int) []float64 {
	size := b.desc.Codewords * b.desc.Width()
	return b.values[s*size : (s+1)*size]
}

// Encode returns the codes of rows.
func (b *Codebook) Encode(e engine.Encoding) (engine.Codes, error) {
	if err := rules.CheckEncoding(b.desc, e); err != nil {
		return engine.Codes{}, err
	}
	values := Decode(e.Element, e.Rows)
	if err := Finite(values, b.desc.Dimension, 0); err != nil {
		return engine.Codes{}, err
	}
	out := engine.Codes{Codes: []byte{}}
	if e.Distances {
		out.Distances = []float32{}
	}
	for values = Rows(b.desc.Metric, b.desc.Dimension, values); len(values) > 0; values = values[b.desc.Dimension:] {
		ids, distances := b.row(values[:b.desc.Dimension], e.Neighbours)
		for _, id := range ids {
			out.Codes = b.appendCode(out.Codes, id)
		}
		if e.Distances {
			for _, d := range distances {
				out.Distances = append(out.Distances, float32(d))
			}
		}
	}
	return out, nil
}

// row returns the codes of one row, and a reported distance for each, or one for a product
// codebook.
func (b *Codebook) row(x []float64, neighbours int) (ids []int, distances []float64) {
	if b.desc.Kind == engine.Product {
		d, all := b.desc.Width(), 0.0
		for s := range b.desc.Subspaces {
			id, least := nearest(engine.L2, x[s*d:(s+1)*d], b.part(s))
			ids = append(ids, id)
			all += least
		}
		return ids, []float64{all}
	}
	every := make([]float64, b.desc.Codewords)
	order := make([]int, b.desc.Codewords)
	for c := range every {
		every[c], order[c] = distance(b.desc.Metric, x, b.values[c*len(x):(c+1)*len(x)]), c
	}
	slices.SortStableFunc(order, func(p, q int) int {
		switch {
		case every[p] < every[q]:
			return -1
		case every[p] > every[q]:
			return 1
		default:
			return 0
		}
	})
	for _, c := range order[:neighbours] {
		ids, distances = append(ids, c), append(distances, reported(b.desc.Metric, every[c]))
	}
	return ids, distances
}

func (b *Codebook) appendCode(to []byte, id int) []byte {
	if b.desc.CodeSize() == 1 {
		return append(to, byte(id))
	}
	return binary.LittleEndian.AppendUint16(to, uint16(id))
}

// Decode returns the codewords of codes.
func (b *Codebook) Decode(codes []byte) ([]byte, error) {
	size, width := b.desc.CodeSize(), b.desc.Width()*b.desc.Type.Size()
	if len(codes)%(size*b.desc.Subspaces) != 0 {
		return nil, fmt.Errorf("%d bytes of codes, want a multiple of %d: %w", len(codes), size*b.desc.Subspaces, engine.ErrInvalid)
	}
	out := make([]byte, 0, len(codes)/size*width)
	for i := 0; i < len(codes)/size; i++ {
		id := int(codes[i*size])
		if size == 2 {
			id = int(binary.LittleEndian.Uint16(codes[2*i:]))
		}
		if id >= b.desc.Codewords {
			return nil, fmt.Errorf("row %d has code %d in subspace %d and there are %d codewords: %w", i/b.desc.Subspaces, id,
				i%b.desc.Subspaces, b.desc.Codewords, engine.ErrInvalid)
		}
		at := (i%b.desc.Subspaces*b.desc.Codewords + id) * width
		out = append(out, b.bytes[at:at+width]...)
	}
	return out, nil
}

// Digest returns BLAKE3 of the codewords' bytes.
func (b *Codebook) Digest() engine.Digest { return blake3.Sum256(b.bytes) }
