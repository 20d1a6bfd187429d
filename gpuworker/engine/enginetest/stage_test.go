package enginetest

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

func TestPlainStagedMemoryKeepsTheContract(t *testing.T) {
	stages, frees := 0, 0
	hooks := Hooks{
		Stage:   func(int) error { stages++; return nil },
		Unstage: func() error { frees++; return nil },
	}
	testStaging(t, func(t *testing.T) engine.Device {
		t.Helper()
		dev, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		return Intercept(Intercept(dev, hooks), Hooks{}) // the outer one asks the inner one
	}, Options{})
	require.Equal(t, 10, stages)
	require.Equal(t, 9, frees)
}
