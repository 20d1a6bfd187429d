package device

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestShareIsTimeAtTheRoofOverTimeTaken(t *testing.T) {
	roofs := Roofs{Read: 50e9, Ops: [Kinds]float64{1000e9, 0, 100e9}}
	for name, tc := range map[string]struct {
		ops  Ops
		took float64
		want float64
	}{
		"half":              {Ops{500e9, 0, 0}, 1, 0.5},
		"all":               {Ops{1000e9, 0, 0}, 1, 1},
		"impossible":        {Ops{1000e9, 0, 0}, 0.5, 2},
		"two kinds":         {Ops{250e9, 0, 25e9}, 1, 0.5},
		"a roof not known":  {Ops{250e9, 1, 0}, 1, 0},
		"no time":           {Ops{250e9, 0, 0}, 0, 0},
		"no work, no share": {Ops{}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) { require.InDelta(t, tc.want, roofs.Share(tc.ops, tc.took), 1e-12) })
	}
}

// meter gives 1, 2, 3, 4 for the roofs in their order.
type meter struct{ failure error }

func (m meter) Measure(what engine.Measure, _ uint64) (float64, error) {
	if what == engine.MeasureBF16Ops {
		return 0, m.failure
	}
	return float64(what) + 1, nil
}

func TestMeasureRoofsSkipsUnsupportedRates(t *testing.T) {
	got, err := MeasureRoofs(meter{engine.ErrUnsupported}, time.Second)
	require.NoError(t, err)
	require.Equal(t, Roofs{Read: 1, Ops: [Kinds]float64{KindInt8: 2, KindF32: 3}}, got)
	failure := errors.New("on fire")
	_, err = MeasureRoofs(meter{failure}, time.Second)
	require.ErrorIs(t, err, failure)
}

func TestMaxTakesTheLargerRoof(t *testing.T) {
	a := Roofs{Read: 5, Ops: [Kinds]float64{1, 20, 3}}
	b := Roofs{Read: 4, Ops: [Kinds]float64{10, 2, 3}}
	require.Equal(t, Roofs{Read: 5, Ops: [Kinds]float64{10, 20, 3}}, a.Max(b))
}
