package enginetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/rules"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// testWeightTypes checks that an engine states the size of a matrix of every weight type, and that
// it refuses routers of types that it does not run by name, before there are bytes of them.
func testWeightTypes(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	for _, weights := range rules.WeightTypes() {
		name := gguf.Type(weights).String()
		t.Run("weights of "+name, func(t *testing.T) {
			size, err := dev.ResidentSize(engine.TensorDesc{Role: engine.RoleQ, Layer: 0, Type: weights, Dims: []int64{256, 256}})
			require.NoError(t, err)
			require.GreaterOrEqual(t, size, gguf.Type(weights).RowBytes(256*256))
		})
		t.Run("a router of "+name, func(t *testing.T) {
			_, err := dev.ResidentSize(engine.TensorDesc{Role: engine.RoleRouter, Layer: 0, Type: weights, Dims: []int64{256, 8}})
			if opts.Routers == nil || slices.Contains(opts.Routers, weights) {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, engine.ErrUnsupported)
			require.ErrorContains(t, err, "weights of type "+name+",")
			require.ErrorContains(t, err, "CPU worker")
		})
	}
}

// testTypes checks that every pair of types of a configuration runs or is refused by name.
func testTypes(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	testWeightTypes(t, opener, opts)
	dev := open(t, opener)
	info, err := dev.Info()
	require.NoError(t, err)
	require.Equal(t, opts.OneClass, info.OneClass, "what the device says of its kernel classes")
	m := Load(t, dev, Random(Small().Model(), all(engine.F16), 42))
	for _, kv := range []engine.Type{engine.F32, engine.F16, engine.BF16, engine.F8} {
		if kv == engine.F32 && opts.Cache != engine.F32 {
			continue // runs as the engine's own
		}
		for _, act := range []engine.Type{0, engine.F16, engine.BF16} {
			t.Run(fmt.Sprintf("keys of %d with activations of %d", kv, act), func(t *testing.T) {
				cfg := Sizes()
				cfg.KVType, cfg.ActType = kv, act
				cost, err := m.RunnerCost(cfg)
				if !opts.Types(kv, act) {
					require.ErrorIs(t, err, engine.ErrUnsupported)
					require.True(t, strings.Contains(err.Error(), "kv_type is") || strings.Contains(err.Error(), "act_type is"), err)
					_, err = m.NewRunner(cfg)
					require.ErrorIs(t, err, engine.ErrUnsupported)
					return
				}
				require.NoError(t, err)
				require.Positive(t, cost.BytesPerBlock)
				got, err := Play(m, cfg, Request{Prompt: numbers(1, 40, 301), Tokens: 5, Params: Plain(1, 0.8), Score: true})
				require.NoError(t, err)
				for _, score := range got[0].Scores {
					require.False(t, math.IsNaN(float64(score.Logprob)))
				}
			})
		}
	}
}
