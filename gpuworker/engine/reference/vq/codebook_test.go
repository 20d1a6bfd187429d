package vq

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestEncodingByHand(t *testing.T) {
	desc := engine.CodebookDesc{Dimension: 2, Codewords: 3, Subspaces: 1, Type: engine.VectorF16}
	b, err := NewCodebook(desc, Encode(engine.VectorF16, []float64{0, 0, 4, 0, 0, 4}))
	require.NoError(t, err)
	codes, err := b.Encode(engine.Encoding{Element: engine.VectorI8, Rows: []byte{2, 0, 255, 5}, Neighbours: 3, Distances: true})
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2, 2, 0, 1}, codes.Codes, "(2,0) is as far from 0 as from 1; (-1,5) is nearest to 2")
	require.Equal(t, []float32{4, 4, 20, 2, 26, 50}, codes.Distances)
	rows, err := b.Decode([]byte{2, 1})
	require.NoError(t, err)
	require.Equal(t, []float64{0, 4, 4, 0}, Decode(engine.VectorF16, rows))
	_, err = b.Decode([]byte{0, 3})
	require.ErrorContains(t, err, "row 1 has code 3")
}

func TestAProductSpeaksOfTheWholeRow(t *testing.T) {
	desc := engine.CodebookDesc{Kind: engine.Product, Dimension: 2, Codewords: 300, Subspaces: 2}
	values := make([]float64, 600)
	for i := range values {
		values[i] = float64(i)
	}
	b, err := NewCodebook(desc, Encode(engine.VectorF32, values))
	require.NoError(t, err)
	codes, err := b.Encode(engine.Encoding{Element: engine.VectorF32, Rows: Encode(engine.VectorF32, []float64{299, 302}), Neighbours: 1, Distances: true})
	require.NoError(t, err)
	require.Equal(t, []byte{43, 1, 2, 0}, codes.Codes, "codes above 256 codewords have two bytes")
	require.Equal(t, []float32{0}, codes.Distances)
	rows, err := b.Decode(codes.Codes)
	require.NoError(t, err)
	require.Equal(t, []float64{299, 302}, Decode(engine.VectorF32, rows))
}
