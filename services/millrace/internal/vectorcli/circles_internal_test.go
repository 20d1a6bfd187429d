package vectorcli

import (
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

func TestCirclesAreThree(t *testing.T) {
	m := circles(1000, 64)
	require.EqualValues(t, 1000, m.Rows())
	seen := map[string]bool{}
	for i := range m.Rows() {
		row := make([]byte, m.RowBytes())
		n, err := m.ReadRows(row, i)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		square := 0.0
		for _, v := range vq.Decode(engine.VectorF32, row) {
			square += v * v
		}
		require.InDelta(t, float64(i%3+1), math.Sqrt(square), 1e-5)
		seen[string(row)] = true
	}
	require.Len(t, seen, 1000)

	rest := make([]byte, 4*m.RowBytes()-1)
	n, err := m.ReadRows(rest, 998)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	_, err = m.ReadRows(rest, 1000)
	require.ErrorIs(t, err, io.EOF)
}

func TestLargeSelftestHasItsDescribedRatio(t *testing.T) {
	// The large selftest has the compression ratio of its first description.
	require.InDelta(t, 0.0206, largeTest.ratio(), 0.00005)
	require.InDelta(t, 0.0316, smallTest.ratio(), 0.00005)
}
