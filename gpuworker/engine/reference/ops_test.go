package reference

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestOperationsOnNumbersWorkedOutByHand(t *testing.T) {
	weights := []float64{1, 2, 3, 4, 5, 6} // (2, 3)
	require.Equal(t, []float64{23, 50, 2, 5}, Matmul(weights, []float64{1, 2, 6, 0, 1, 0}, 2, 2, 3))
	require.InDeltaSlice(t, []float64{0.09003057317038046, 0.24472847105479767, 0.6652409557748219}, Softmax([]float64{1, 2, 3}), 1e-15)
	require.Equal(t, []float64{0, 0}, Softmax([]float64{math.Inf(-1), math.Inf(-1)}))
	require.InDelta(t, -math.Log(2), LogSoftmax([]float64{1000, 1000})[0], 1e-15)
	require.InDeltaSlice(t, []float64{0.6 * math.Sqrt2, 1.6 * math.Sqrt2}, RMSNorm([]float64{3, 4}, []float64{1, 2}, 0), 1e-15)
	require.InDelta(t, 0.7310585786300049, SiLU(1), 1e-15)
	require.Zero(t, SiLU(0))
	require.InDelta(t, 0.8411919906082768, GELUTanh(1), 1e-15)
	require.InDelta(t, -0.15880800939172324, GELUTanh(-1), 1e-15)
	require.InDelta(t, 30*math.Tanh(0.5), Cap(15, 30), 1e-15)
	require.EqualValues(t, 15, Cap(15, 0))
}

func TestRopeTurnsPairsByPosition(t *testing.T) {
	head := []float64{1, 0, 0, 1, 9}
	norm := Rotate(head, &engine.Rope{Dims: 4, Style: engine.RopeNorm, Base: 100, Scale: 1}, 2) // frequencies 1 and 0.1
	require.InDeltaSlice(t, []float64{math.Cos(2), math.Sin(2), -math.Sin(0.2), math.Cos(0.2), 9}, norm, 1e-15)
	neox := Rotate(head, &engine.Rope{Dims: 4, Style: engine.RopeNeox, Base: 100, Scale: 2, Divisors: []float64{1, 4}}, 2) // 0.5 and 0.0125: pairs (0,2) and (1,3)
	require.InDeltaSlice(t, []float64{math.Cos(1), -math.Sin(0.025), math.Sin(1), math.Cos(0.025), 9}, neox, 1e-15)
	still := Rotate(head, &engine.Rope{Dims: 4, Style: engine.RopeNorm, Base: 100, Scale: 1, Magnitude: 3, Divisors: []float64{1, math.Inf(1)}}, 2)
	require.InDeltaSlice(t, []float64{3 * math.Cos(2), 3 * math.Sin(2), 0, 3, 9}, still, 1e-15)
}

func TestTemperatureRisesByTheLength(t *testing.T) {
	// Ministral 3: a scale of 0.1 and a length of 16384; at position 40000 it is 1 + 0.1 ln 3.
	m := &engine.Mixer{TemperatureScale: 0.1, TemperatureLength: 16384}
	for position, want := range map[int]float64{0: 1, 16383: 1, 16384: 1 + 0.1*math.Ln2, 32767: 1 + 0.1*math.Ln2, 40000: 1.1098612288668110} {
		require.InDelta(t, want, Temperature(m, position), 1e-8, "position %d", position)
	}
}

func TestAttentionOverOneKeyIsItsValue(t *testing.T) {
	rows := [][]float64{{1, 2}, {-3, 5}}
	at := func(i int) []float64 { return rows[i] }
	require.Equal(t, rows[0], Attention([]float64{7, 7}, 1, at, at, 1, 0, NoSink))
	require.InDeltaSlice(t, []float64{-1, 3.5}, Attention([]float64{0, 0}, 2, at, at, 1, 0, NoSink), 1e-15)
	require.InDeltaSlice(t, []float64{-2.0 / 3, 7.0 / 3}, Attention([]float64{0, 0}, 2, at, at, 1, 0, 0), 1e-15, "a sink like the scores")
}
