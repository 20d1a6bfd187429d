package model

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

// together is a device that says that it is several GPUs.
type together struct {
	engine.Device
	gpus int
}

func (d together) Info() (engine.DeviceInfo, error) {
	info, err := d.Device.Info()
	info.Devices = d.gpus
	return info, err
}

func TestFitCountsStagingOfOneOfSeveralGPUs(t *testing.T) {
	// The largest tensor lies on the first GPU, and the free memory is that of one GPU times their
	// number.
	staging := func(gpus int) uint64 {
		device, err := sim.Open(sim.Options{Memory: 100_000}, hclog.NewNullLogger())
		require.NoError(t, err)
		var fit *FitError
		_, _, err = managerOf(t, together{device, gpus}).Load(t.Context(), "small", Options{}, nil)
		require.ErrorAs(t, err, &fit)
		require.GreaterOrEqual(t, fit.Needed, fit.Weights+fit.Staging)
		return fit.Staging
	}
	require.Positive(t, staging(1))
	require.Equal(t, 4*staging(1), staging(4))
}
