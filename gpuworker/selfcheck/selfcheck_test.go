package selfcheck

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/native"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/internal/cputest"
)

func TestTheCPUPassesEveryCheck(t *testing.T) {
	// The CPU passes fourteen operations and the short models.
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path()}, hclog.NewNullLogger())
	require.NoError(t, err)
	rows, err := Run(device)
	var table strings.Builder
	info, infoErr := device.Info()
	require.NoError(t, infoErr)
	require.NoError(t, Print(&table, info, rows))
	t.Log("\n" + table.String())
	require.NoError(t, err)
	require.Len(t, rows, int(engine.OpCount)+3)
	require.Equal(t, 17, strings.Count(table.String(), " ok\n"))
	require.NoError(t, device.Close(), "nothing is left on the device")
}

// wrong is a device whose operations do nothing.
type wrong struct{ *native.Device }

func (d wrong) Run(engine.OpArgs) (took time.Duration, err error) { return 1, nil }

func TestADeviceThatComputesWrongFails(t *testing.T) {
	device, err := native.Open(native.Options{Device: "cpu", Path: cputest.Path()}, hclog.NewNullLogger())
	require.NoError(t, err)
	inner, ok := device.(*native.Device)
	require.True(t, ok)
	rows, err := Run(wrong{inner})
	require.ErrorIs(t, err, ErrFailed)
	require.False(t, rows[0].OK)
	require.NoError(t, device.Close())
}

func TestADeviceThatComputesNothingSaysSo(t *testing.T) {
	device, err := sim.Open(sim.Options{}, hclog.NewNullLogger())
	require.NoError(t, err)
	_, err = Run(device)
	require.ErrorIs(t, err, engine.ErrUnsupported)
}

func TestWhatIsNotANumberIsInfinitelyFar(t *testing.T) {
	require.True(t, math.IsInf(distance([]float32{1, float32(math.NaN())}, []float64{1, 1}), 1))
	require.InDelta(t, 0.5, distance([]float32{1, 1.5}, []float64{1, 1}), 1e-9)
}
