package arch_test

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/synth"
)

// TestPublishedLongContextModels parses the keys that published files of models with a stretched
// context, a temperature or fused tensors have.
func TestPublishedLongContextModels(t *testing.T) {
	lists := func(dims int) map[string][]float64 {
		return map[string][]float64{arch.LongFactorsName: slices.Repeat([]float64{4}, dims/2), arch.ShortFactorsName: slices.Repeat([]float64{1.25}, dims/2)}
	}
	longKeys := map[string]any{"attention.sliding_window": uint32(262144), "rope.dimension_count": uint32(96),
		"rope.scaling.original_context_length": uint32(4096), "rope.scaling.attn_factor": float32(1.1902381)}
	for _, tc := range []struct {
		name, architecture string
		keys               map[string]any
		tensors            []string
		factors            map[string][]float64
		want               func(must *require.Assertions, d *engine.ModelDesc)
	}{
		{"Phi-3 mini 4k", "phi3", published(32, 3072, 8192, 32, 32, 96, 4096, 1e-5, map[string]any{"attention.sliding_window": uint32(2047),
			"rope.scaling.original_context_length": uint32(4096)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal([]int{2047, 2047}, []int{slices.Min(windows(d)), slices.Max(windows(d))}, "all layers have it, as in transformers")
				must.Equal([]engine.Rope{{Dims: 96, Style: engine.RopeNeox, Base: 10000, Scale: 1}}, d.Ropes)
			}},
		{"Phi-3.5 mini", "phi3", published(32, 3072, 8192, 32, 32, 96, 131072, 1e-5, longKeys), []string{"output.weight"}, lists(96),
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Zero(slices.Max(windows(d)), "a window over the whole context")
				must.Equal(slices.Repeat([]float64{4}, 48), d.Ropes[0].Divisors)
				must.InDelta(1.19024, float64(d.Ropes[0].Magnitude), 1e-4)
			}},
		{"Phi-4 mini", "phi3", published(32, 3072, 8192, 24, 8, 128, 131072, 1e-5, longKeys), nil, lists(96),
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Equal([]int{96, 128}, []int{d.Ropes[0].Dims, d.Layers[0].Mixer.KeyDim}, "three quarters of a head rotate")
				must.True(d.TiedHead)
			}},
		{"Phi-4", "phi3", published(40, 5120, 17920, 40, 10, 128, 16384, 1e-5, map[string]any{"attention.sliding_window": uint32(0),
			"rope.scaling.original_context_length": uint32(16384), "rope.freq_base": float32(250000)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Zero(slices.Max(windows(d)))
				must.Nil(d.Ropes[0].Divisors)
			}},
		{"GLM-4 9B 0414", "glm4", published(40, 4096, 13696, 32, 2, 128, 32768, 1e-5, map[string]any{"rope.dimension_count": uint32(64)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				m := d.Layers[0].Mixer
				must.True(m.EndNorm && d.Layers[0].MLP.EndNorm && !m.NoNorm && !m.QKVBias)
				must.Equal([]engine.Rope{{Dims: 64, Style: engine.RopeNorm, Base: 10000, Scale: 1}}, d.Ropes)
			}},
		{"Ministral 3 8B", "mistral3", published(34, 4096, 14336, 32, 8, 128, 262144, 1e-5, map[string]any{"rope.freq_base": float32(1e6),
			"rope.scaling.type": "yarn", "rope.scaling.factor": float32(16), "rope.scaling.original_context_length": uint32(16384),
			"rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1), "rope.scaling.yarn_log_multiplier": float32(1),
			"attention.temperature_scale": float32(0.1)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				m, rope := d.Layers[0].Mixer, d.Ropes[0]
				must.Equal(float32(0.1), m.TemperatureScale)
				must.Equal(16384, m.TemperatureLength)
				must.EqualValues(1, rope.Magnitude, "mscale and mscale_all_dim are 1")
				// 128 ln(16384 / (32 2 pi)) / (2 ln 1e6) = 20.4, and of one turn 36.4.
				must.Equal([]float64{1, 1, 16, 16}, []float64{rope.Divisors[0], rope.Divisors[20], rope.Divisors[37], rope.Divisors[63]})
				must.InDelta(1/(1.0/17/16+16.0/17), rope.Divisors[21], 1e-12)
			}},
		{"Mistral Small 3.2", "mistral3", published(40, 5120, 32768, 32, 8, 128, 131072, 1e-5, map[string]any{"rope.freq_base": float32(1e9)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.Zero(d.Layers[0].Mixer.TemperatureLength)
				must.Equal([]engine.Rope{{Dims: 128, Style: engine.RopeNorm, Base: 1e9, Scale: 1}}, d.Ropes)
			}},
		{"a Qwen 2.5 with YaRN", "qwen2", published(28, 3584, 18944, 28, 4, 128, 131072, 1e-6, map[string]any{"rope.freq_base": float32(1e6),
			"rope.scaling.type": "yarn", "rope.scaling.factor": float32(4), "rope.scaling.original_context_length": uint32(32768)}), []string{"output.weight"}, nil,
			func(must *require.Assertions, d *engine.ModelDesc) {
				must.InDelta(1+0.1*math.Log(4), float64(d.Ropes[0].Magnitude), 1e-7)
				must.EqualValues(4, d.Ropes[0].Divisors[63])
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			layout, err := arch.Describe(header(t, tc.architecture, tc.keys, tc.tensors, tc.factors), tc.architecture)
			require.NoError(t, err)
			tc.want(require.New(t), &layout.Desc)
		})
	}
}

func TestSharedKeysNeedALayerBefore(t *testing.T) {
	shape, ok := synth.Small("gemma4-e2b")
	require.True(t, ok)
	for _, tc := range []struct {
		key   string
		value uint32
		want  string
	}{
		{"attention.shared_kv_layers", 4, ""},
		{"attention.shared_kv_layers", 7, "attention.shared_kv_layers is 7: no layer before layer 1 has keys for layer 3"},
		{"attention.shared_kv_layers", 8, "attention.shared_kv_layers is 8, want at most 7"},
		{"embedding_length_per_layer_input", 1 << 17, "embedding_length_per_layer_input is 131072, want at most 65536"},
	} {
		keys := maps.Clone(shape.Family.Keys)
		keys[tc.key] = tc.value
		f := header(t, "gemma4", keys, shape.Family.Tensors, map[string][]float64{arch.RopeFactorsName: shape.Family.Factors})
		layout, err := arch.Describe(f, "gemma4")
		if tc.want != "" {
			require.ErrorIs(t, err, arch.ErrInvalidModel)
			require.ErrorContains(t, err, tc.want)
			continue
		}
		require.NoError(t, err)
		var shared []int
		for _, l := range layout.Desc.Layers {
			shared = append(shared, l.Mixer.KVLayer)
		}
		require.Equal(t, []int{0, 0, 0, 0, 2, 3, 4, 4}, shared, "the last layer with a window before them, and the last without")
		require.Equal(t, 12, layout.Desc.LayerInputWidth)
	}
}
