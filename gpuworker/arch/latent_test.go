package arch_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// latentKeys are the keys of a published file with a latent of 512 and a rotated key of 64.
func latentKeys(layers, hidden, ffn, heads, context, plain, value uint32, eps float32, more map[string]any) map[string]any {
	of := published(layers, hidden, ffn, heads, 1, 512+64, context, eps, map[string]any{
		"attention.value_length": uint32(512), "attention.kv_lora_rank": uint32(512), "rope.dimension_count": uint32(64),
		"attention.key_length_mla": plain + 64, "attention.value_length_mla": value, "leading_dense_block_count": uint32(1),
	})
	return with(of, more)
}

// TestPublishedModelsOverLatents parses the keys that llama.cpp's converter writes for published
// configurations.
func TestPublishedModelsOverLatents(t *testing.T) {
	yarn := func(factor float32, multiplier float32, more map[string]any) map[string]any {
		return with(map[string]any{
			"rope.scaling.type": "yarn", "rope.scaling.factor": factor, "rope.scaling.original_context_length": uint32(4096),
			"rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1), "rope.scaling.yarn_log_multiplier": multiplier,
		}, more)
	}
	squared := func(width int, factor, all float64) float64 {
		m := 0.1*all*math.Log(factor) + 1
		return m * m / math.Sqrt(float64(width))
	}
	biased := []string{"output.weight", "blk.1.exp_probs_b.bias", "blk.3.exp_probs_b.bias"}
	for _, tc := range []struct {
		name    string
		keys    map[string]any
		tensors []string
		mixer   engine.Mixer
		scale   float64
		dense   int
		experts engine.Experts
		width   int
	}{
		{"DeepSeek V2-Lite", latentKeys(27, 2048, 10944, 16, 163840, 128, 128, 1e-6, yarn(40, 0.0707, map[string]any{
			"expert_count": uint32(64), "expert_used_count": uint32(6), "expert_feed_forward_length": uint32(1408), "expert_shared_count": uint32(2),
			"expert_weights_scale": float32(1), "expert_group_count": uint32(1), "expert_group_used_count": uint32(1), "expert_gating_func": uint32(1),
		})), []string{"output.weight"}, engine.Mixer{Heads: 16, KeyDim: 192, ValueDim: 128}, squared(192, 40, 0.707), 1,
			engine.Experts{Count: 64, Used: 6, SharedWidth: 2816, WeightScale: 1}, 1408},
		{"DeepSeek V2 without the kind of gating", latentKeys(60, 5120, 12288, 128, 163840, 128, 128, 1e-6, yarn(40, 0.0707, map[string]any{
			"attention.q_lora_rank": uint32(1536), "expert_count": uint32(160), "expert_used_count": uint32(6),
			"expert_feed_forward_length": uint32(1536), "expert_shared_count": uint32(2), "expert_weights_scale": float32(16),
			"expert_group_count": uint32(8), "expert_group_used_count": uint32(3),
		})), []string{"output.weight"}, engine.Mixer{Heads: 128, KeyDim: 192, ValueDim: 128, QueryLatent: 1536}, squared(192, 40, 0.707), 1,
			engine.Experts{Count: 160, Used: 6, SharedWidth: 3072, WeightScale: 16, Groups: 8, GroupsUsed: 3}, 1536},
		{"DeepSeek V3 and R1", latentKeys(61, 7168, 18432, 128, 163840, 128, 128, 1e-6, yarn(40, 0.1, map[string]any{
			"attention.q_lora_rank": uint32(1536), "leading_dense_block_count": uint32(3), "expert_count": uint32(256), "expert_used_count": uint32(8),
			"expert_feed_forward_length": uint32(2048), "expert_shared_count": uint32(1), "expert_weights_scale": float32(2.5),
			"expert_weights_norm": true, "expert_gating_func": uint32(2), "expert_group_count": uint32(8), "expert_group_used_count": uint32(4),
		})), biased, engine.Mixer{Heads: 128, KeyDim: 192, ValueDim: 128, QueryLatent: 1536}, squared(192, 40, 1), 3,
			engine.Experts{Count: 256, Used: 8, SharedWidth: 2048, WeightScale: 2.5, Renorm: true, Gating: engine.GateSigmoid, ChoiceBias: true,
				Groups: 8, GroupsUsed: 4, GroupBestTwo: true}, 2048},
		{"Kimi K2", latentKeys(61, 7168, 18432, 64, 131072, 128, 128, 1e-6, yarn(32, 0.1, map[string]any{
			"attention.q_lora_rank": uint32(1536), "rope.freq_base": float32(50000), "rope.scaling.yarn_beta_fast": float32(1), "expert_count": uint32(384),
			"expert_used_count": uint32(8), "expert_feed_forward_length": uint32(2048), "expert_shared_count": uint32(1),
			"expert_weights_scale": float32(2.827), "expert_weights_norm": true, "expert_gating_func": uint32(2),
			"expert_group_count": uint32(1), "expert_group_used_count": uint32(1),
		})), biased, engine.Mixer{Heads: 64, KeyDim: 192, ValueDim: 128, QueryLatent: 1536}, squared(192, 32, 1), 1,
			engine.Experts{Count: 384, Used: 8, SharedWidth: 2048, WeightScale: 2.827, Renorm: true, Gating: engine.GateSigmoid, ChoiceBias: true}, 2048},
		{"GLM-4.7-Flash, without the kind of gating", latentKeys(47, 2048, 10240, 20, 202752, 192, 256, 1e-5, map[string]any{
			"attention.q_lora_rank": uint32(768), "rope.freq_base": float32(1e6), "expert_count": uint32(64), "expert_used_count": uint32(4),
			"expert_feed_forward_length": uint32(1536), "expert_shared_count": uint32(1), "expert_weights_scale": float32(1.8),
			"expert_weights_norm": true, "vocab_size": uint32(154880),
		}), biased, engine.Mixer{Heads: 20, KeyDim: 256, ValueDim: 256, QueryLatent: 768}, 0, 1,
			engine.Experts{Count: 64, Used: 4, SharedWidth: 1536, WeightScale: 1.8, Renorm: true, Gating: engine.GateSigmoid, ChoiceBias: true}, 1536},
	} {
		t.Run(tc.name, func(t *testing.T) {
			layout, err := arch.Describe(header(t, "deepseek2", tc.keys, tc.tensors, nil), "deepseek2")
			require.NoError(t, err)
			d := &layout.Desc
			want := tc.mixer
			want.Kind, want.KVHeads, want.Latent = engine.MixLatent, 1, 512
			for i, l := range d.Layers {
				require.InDelta(t, tc.scale, float64(l.Mixer.Scale), 1e-6)
				l.Mixer.Scale = 0
				require.Equal(t, want, l.Mixer)
				require.Equal(t, i < tc.dense, l.MLP.Kind == engine.MLPDense, "layer %d", i)
			}
			require.Equal(t, engine.MLP{Kind: engine.MLPExperts, Width: tc.width, Experts: tc.experts}, d.Layers[tc.dense].MLP)
			rope := d.Ropes[0]
			require.Equal(t, []any{64, engine.RopeNorm}, []any{rope.Dims, rope.Style})
			if tc.scale != 0 {
				require.EqualValues(t, 1, rope.Magnitude, "mscale and mscale_all_dim are the same")
				require.Len(t, rope.Divisors, 32)
			}
		})
	}
}

func TestDenseModelsOverLatents(t *testing.T) {
	// Youtu-LLM has no experts, and its converter counts all layers as leading dense ones.
	keys := latentKeys(32, 2048, 6144, 16, 131072, 128, 128, 1e-6, map[string]any{
		"attention.q_lora_rank": uint32(1536), "leading_dense_block_count": uint32(32), "expert_feed_forward_length": uint32(6144),
		"expert_shared_count": uint32(0), "rope.freq_base": float32(1.6e6),
	})
	layout, err := arch.Describe(header(t, "deepseek2", keys, nil, nil), "deepseek2")
	require.NoError(t, err)
	require.True(t, layout.Desc.TiedHead)
	for _, l := range layout.Desc.Layers {
		require.Equal(t, engine.MLP{Kind: engine.MLPDense, Width: 6144}, l.MLP)
	}
}

func TestPredictorsAreSkippedOverLatents(t *testing.T) {
	keys := with(smallKeys(t, "deepseek2"), map[string]any{"nextn_predict_layers": uint32(1)})
	layout, err := arch.Describe(header(t, "deepseek2", keys, []string{"blk.1.exp_probs_b.bias"}, nil), "deepseek2")
	require.NoError(t, err)
	require.Len(t, layout.Desc.Layers, 3)
}

func TestModelsOverLatentsAreRefusedByName(t *testing.T) {
	small := smallKeys(t, "deepseek2")
	invalid, unsupported := arch.ErrInvalidModel, arch.ErrUnsupportedArch
	for name, tc := range map[string]struct {
		keys    map[string]any
		tensors []string
		err     error
		want    string
	}{
		"keys and values in one tensor": {map[string]any{"attention.key_length_mla": nil, "attention.value_length_mla": nil}, []string{"blk.0.attn_kv_b.weight"},
			unsupported, "tensor blk.0.attn_kv_b.weight, which holds the keys and the values of all heads, as in files of before April 2025: convert the model again"},
		"no latent":               {map[string]any{"attention.kv_lora_rank": nil}, nil, invalid, "deepseek2.attention.kv_lora_rank is missing"},
		"no width of keys":        {map[string]any{"attention.key_length_mla": nil}, nil, invalid, "deepseek2.attention.key_length_mla is missing"},
		"a latent of queries":     {map[string]any{"attention.q_lora_rank": uint32(1 << 20)}, nil, invalid, "deepseek2.attention.q_lora_rank is 1048576, want at most 65536"},
		"heads of keys":           {map[string]any{"attention.head_count_kv": uint32(6)}, nil, invalid, "deepseek2.attention.head_count_kv is 6, want 1, because"},
		"another width of keys":   {map[string]any{"attention.key_length": uint32(24)}, nil, invalid, "deepseek2.attention.key_length is 24, want 40, because deepseek2.attention.kv_lora_rank is 32 and deepseek2.rope.dimension_count 8"},
		"another width of values": {map[string]any{"attention.value_length": uint32(24)}, nil, invalid, "deepseek2.attention.value_length is 24, want 32"},
		"whole heads that rotate": {map[string]any{"attention.key_length_mla": uint32(8)}, nil, invalid, "deepseek2.rope.dimension_count is 8, want less than the 8 of deepseek2.attention.key_length_mla"},
		"a temperature":           {map[string]any{"attention.temperature_scale": float32(0.1)}, nil, unsupported, "attention temperature (metadata deepseek2.attention.temperature_scale is 0.1"},
		"a window":                {map[string]any{"attention.sliding_window": uint32(24)}, nil, unsupported, "sliding window"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := arch.Describe(header(t, "deepseek2", with(small, tc.keys), tc.tensors, nil), "deepseek2")
			require.ErrorIs(t, err, tc.err)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
