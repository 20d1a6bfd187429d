package sim_test

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/sim"
)

func TestTheSimEngineKeepsTheContract(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) engine.Device {
		t.Helper()
		dev, err := sim.Open(sim.Options{Memory: 1 << 30, Reserved: 16}, hclog.NewNullLogger())
		require.NoError(t, err)
		return dev
	}, enginetest.Options{OneClass: true, Types: func(engine.Type, engine.Type) bool { return true }})
}

func TestTheSimEngineKeepsTheContractOfVectors(t *testing.T) {
	enginetest.RunVectors(t, func(t *testing.T) engine.Device {
		t.Helper()
		dev, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		return dev
	}, enginetest.VectorOptions{})
}
