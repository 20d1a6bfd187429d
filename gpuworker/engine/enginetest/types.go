package enginetest

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// testTypes: every pair of types that a configuration may hold runs, or is refused by name.
func testTypes(t *testing.T, opener func(*testing.T) engine.Device, opts Options) {
	dev := open(t, opener)
	info, err := dev.Info()
	require.NoError(t, err)
	require.Equal(t, opts.OneClass, info.OneClass, "what the device says of its kernel classes")
	m := Load(t, dev, Random(Small(), all(engine.F16), 42))
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
