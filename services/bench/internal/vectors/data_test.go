package vectors

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
	"github.com/millrace/millrace/internal/vectorfile"
)

func TestRowsDependOnTheSeedAlone(t *testing.T) {
	d := Data{Rows: drawnRows + 3, Dimension: 2, Seed: 5}
	all := d.Bytes(engine.VectorF32)
	require.Equal(t, all, d.Bytes(engine.VectorF32))
	require.NotEqual(t, all, Data{Rows: d.Rows, Dimension: 2, Seed: 6}.Bytes(engine.VectorF32))
	require.NotEqual(t, all[:8], all[8*drawnRows:8*drawnRows+8], "tasks draw different rows")
	values, halves := vq.Decode(engine.VectorF32, all), vq.Decode(engine.VectorF16, d.Bytes(engine.VectorF16))
	var sum, squares float64
	for i, v := range values {
		require.InDelta(t, v, halves[i], 0x1p-8, "the same rows, rounded")
		sum, squares = sum+v, squares+v*v
	}
	n := float64(len(values))
	require.InDelta(t, 0, sum/n, 0.1)
	require.InDelta(t, 1, squares/n, 0.1)
}

func TestClusteredRowsLieAroundTheirPoints(t *testing.T) {
	d := Data{Rows: 600, Dimension: 8, Seed: 1, Clusters: 3}
	values := vq.Decode(engine.VectorF32, d.Bytes(engine.VectorF32))
	near := 0 // rows of the first row's point: about a third, nearer to it than any other point's
	for i := range d.Rows {
		var square float64
		for j := range d.Dimension {
			square += math.Pow(values[i*d.Dimension+j]-values[j], 2)
		}
		if square < 1 {
			near++
		}
	}
	require.InDelta(t, 200, near, 60)
}

func TestWrittenRowsEqualMeasuredRows(t *testing.T) {
	d := Data{Rows: drawnRows + 1, Dimension: 3, Seed: 9}
	var file bytes.Buffer
	require.NoError(t, d.Write(t.Context(), &file))
	m, err := vectorfile.NewRows("x.fvecs", bytes.NewReader(file.Bytes()), int64(file.Len()))
	require.NoError(t, err)
	require.EqualValues(t, d.Rows, m.Rows())
	got := make([]byte, d.Rows*m.RowBytes())
	_, err = m.ReadRows(got, 0)
	require.NoError(t, err)
	require.Equal(t, d.Bytes(engine.VectorF32), got)
	d.Rows = 0
	require.ErrorContains(t, d.Write(t.Context(), &file), "--rows 0")
}

func TestSampledRowsCoverAllRows(t *testing.T) {
	require.Equal(t, []int{0, 25, 50, 75}, sampled(100, 4))
	require.Equal(t, []int{0, 1, 2}, sampled(3, 64))
}
