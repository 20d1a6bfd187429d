package model

import (
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/sim"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// limited is a device without kernels for Q8_0, or for any model.
type limited struct {
	engine.Device
	noModel bool
}

func (l limited) ResidentSize(t engine.TensorDesc) (uint64, error) {
	if t.Type == engine.Type(gguf.Q8_0) {
		return 0, fmt.Errorf("%w: no kernels for Q8_0", engine.ErrUnsupported)
	}
	return l.Device.ResidentSize(t)
}

func (l limited) NewModel(d engine.ModelDesc) (engine.Model, error) {
	if l.noModel {
		return nil, fmt.Errorf("%w: layer 0 has a window", engine.ErrUnsupported)
	}
	return l.Device.NewModel(d)
}

func TestListNamesWhatTheDeviceLacks(t *testing.T) {
	for _, tc := range []struct {
		noModel bool
		want    string
	}{{false, `tensor "token_embd.weight": `}, {true, "layer 0 has a window"}} {
		device, err := sim.Open(sim.Options{Memory: 1 << 30}, hclog.NewNullLogger())
		require.NoError(t, err)
		m := managerOf(t, limited{device, tc.noModel})
		found := false
		for _, e := range m.Files() {
			if e.Name == "small" {
				found = true
				require.ErrorIs(t, e.Problem, engine.ErrUnsupported)
				require.ErrorContains(t, e.Problem, tc.want)
			}
		}
		require.True(t, found)
		_, _, err = m.Load(t.Context(), "small", Options{}, nil)
		require.ErrorContains(t, err, tc.want, "the load says the same")
	}
}

func TestFactsNameTypesAndTheSmallestWindow(t *testing.T) {
	m, _ := manager(t, 1<<30)
	for _, e := range m.Files() {
		if e.Name == "small" {
			require.Equal(t, []string{"Q8_0"}, e.WeightTypes)
			require.Zero(t, e.Window)
		}
	}
	desc := engine.ModelDesc{Layers: []engine.Layer{{}, {Mixer: engine.Mixer{Window: 512}}, {Mixer: engine.Mixer{Window: 128}}}}
	require.Equal(t, 128, window(&desc))
}
