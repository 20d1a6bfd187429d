package enginetest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// testLargest tests the largest dimension and the largest number of codewords, each with rows of
// one shape. All shapes, and both maxima at once, which are 1 GiB of F32 codewords, need
// VectorOptions.Largest.
func testLargest(t *testing.T, dev engine.Vectors, opts VectorOptions) {
	type size struct{ dimension, codewords, rows int }
	sizes := []size{
		{1, 65536, 20}, {3, 65535, 20}, {16, 65536, 5}, {1023, 300, 10}, {4095, 70, 10}, {4096, 257, 5}, {4097, 2, 10}, {65535, 3, 3},
		{65536, 2, 3},
	}
	if opts.Largest {
		sizes = append(sizes, size{4096, 65536, 3}, size{4095, 65535, 3})
	}
	for i, s := range sizes {
		shapes := rowShapes
		if !opts.Largest || s.dimension*s.codewords > 1<<20 {
			shapes = []shape{rowShapes[i%len(rowShapes)]}
		}
		for at, of := range shapes {
			r := rand.New(rand.NewPCG(uint64(i), uint64(at)))
			desc := engine.CodebookDesc{Dimension: s.dimension, Codewords: s.codewords, Subspaces: 1, Type: engine.Element(at % 3)}
			codewords := rowsOf(of, r, desc.Type, desc.Type, s.codewords, s.dimension)
			e := engine.Encoding{Element: engine.VectorF32, Rows: rowsOf(of, r, engine.VectorF32, desc.Type, s.rows, s.dimension),
				Neighbours: min(s.codewords, 4), Distances: true}
			require.NoError(t, CheckEncoding(dev, desc, codewords, e, 2), "%d %s rows of %d, %d codewords of type %d", s.rows, of.name, s.dimension,
				s.codewords, desc.Type)
		}
	}
}
