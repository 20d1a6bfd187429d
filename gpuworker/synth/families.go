package synth

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// small has a small shape of every architecture of package arch. Each has every block of its
// family: more layers than the pattern of its windows, a window of 24, heads that are not
// hidden/heads wide where the family allows it, and an odd vocabulary. Scales and caps are such
// that another value changes logits by far more than rounding does.
var small = map[string]Family{
	// As V3: two of four groups by their two best. Its mscale_all_dim is 0.8. llama.cpp ignores the
	// keys of YaRN's borders in this family.
	"deepseek2": {
		Keys: keys(4, 48, 80, 6, 1, 40, map[string]any{
			"attention.q_lora_rank": uint32(28), "attention.kv_lora_rank": uint32(32), "attention.value_length": uint32(32),
			"attention.key_length_mla": uint32(24), "attention.value_length_mla": uint32(20), "rope.dimension_count": uint32(8),
			"rope.freq_base": float32(1000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(16),
			"rope.scaling.original_context_length": uint32(1024), "rope.scaling.yarn_log_multiplier": float32(0.08),
			"expert_count": uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
			"expert_shared_count": uint32(2), "expert_group_count": uint32(4), "expert_group_used_count": uint32(2),
			"leading_dense_block_count": uint32(1), "expert_gating_func": uint32(2), "expert_weights_norm": true,
			"expert_weights_scale": float32(1.5),
		}),
		Tensors: []string{headName, "blk.1.exp_probs_b.bias"},
	},
	"dots1": {
		Keys: keys(4, 48, 80, 4, 4, 12, map[string]any{
			"expert_count": uint32(11), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20), "expert_shared_count": uint32(2),
			"leading_dense_block_count": uint32(1), "expert_gating_func": uint32(2), "expert_weights_norm": true,
			"expert_weights_scale": float32(2.5),
		}),
		Tensors: []string{headName, "blk.1.exp_probs_b.bias"},
	},
	"ernie4_5-moe": {
		Keys: keys(4, 48, 80, 4, 2, 12, map[string]any{
			"expert_count": uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20), "expert_shared_count": uint32(2),
			"expert_shared_feed_forward_length": uint32(40), "leading_dense_block_count": uint32(1), "interleave_moe_layer_step": uint32(1),
		}),
		Tensors: []string{"blk.1.exp_probs_b.bias"},
	},
	"exaone4": {
		// llama.cpp knows the windows of the 32B by its 64 layers.
		Keys: keys(64, 32, 48, 4, 2, 8, map[string]any{
			"attention.sliding_window": uint32(24), "attention.sliding_window_pattern": eachLayer(64, func(i int) bool { return i%4 != 3 }),
			"rope.freq_base": float32(1e6),
		}),
		Tensors: []string{headName}, Factors: []float64{1, 1.5, 4, 8},
	},
	"gemma2": {Keys: keys(5, 48, 80, 4, 2, 20, map[string]any{
		"attention.sliding_window": uint32(24), "attn_logit_softcapping": float32(1.5), "final_logit_softcapping": float32(2.5),
	})},
	"gemma3": {Keys: keys(8, 48, 80, 4, 1, 32, map[string]any{
		"attention.sliding_window": uint32(24), "rope.freq_base": float32(1e6), "rope.scaling.type": "linear", "rope.scaling.factor": float32(8),
	})},
	"gemma4": {
		Keys: keys(8, 48, 80, 4, 2, 16, map[string]any{
			"attention.head_count_kv": eachLayer(8, func(i int) int32 { return 2 - int32(i%6/5) }), "feed_forward_length": eachLayer(8, func(i int) int32 { return 80 + int32(i%2*8) }),
			"attention.key_length_swa": uint32(8), "attention.value_length_swa": uint32(8), "rope.dimension_count_swa": uint32(6),
			"attention.sliding_window": uint32(24), "attention.sliding_window_pattern": eachLayer(8, func(i int) bool { return i%6 != 5 }),
			"rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4), "final_logit_softcapping": float32(2.5),
			"embedding_length_per_layer_input": uint32(0), "attention.shared_kv_layers": uint32(0),
		}),
		Tensors: append(inLayers("attn_v.weight", 0, 1, 2, 3, 4, 6, 7), inLayers("layer_output_scale.weight", 0, 1, 2, 3, 4, 5, 6, 7)...),
		Factors: []float64{1, 1, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30},
	},
	// E2B: inputs of layers, and four layers that share keys and values.
	"gemma4-e2b": {
		Architecture: "gemma4",
		Keys: keys(8, 48, 80, 4, 1, 16, map[string]any{
			"feed_forward_length":      eachLayer(8, func(i int) int32 { return 80 + int32(i/4*80) }),
			"attention.key_length_swa": uint32(8), "attention.value_length_swa": uint32(8), "rope.dimension_count_swa": uint32(8),
			"attention.sliding_window": uint32(24), "attention.sliding_window_pattern": eachLayer(8, func(i int) bool { return i%4 != 3 }),
			"rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4), "final_logit_softcapping": float32(2.5),
			"embedding_length_per_layer_input": uint32(12), "attention.shared_kv_layers": uint32(4),
		}),
		Tensors: append(inLayers("attn_v.weight", 0, 1, 2, 3), inLayers("layer_output_scale.weight", 0, 1, 2, 3, 4, 5, 6, 7)...),
		Factors: []float64{1, 1, 1e30, 1e30, 1e30, 1e30, 1e30, 1e30},
	},
	// A text of the tests is longer than the window, of which half counts on each side.
	"gemma-embedding": {Keys: keys(8, 48, 80, 4, 1, 32, map[string]any{
		"attention.causal":         false,
		"attention.sliding_window": uint32(24), "rope.freq_base": float32(1e6), "pooling_type": uint32(1),
		"dense_2_feat_in": uint32(48), "dense_2_feat_out": uint32(64), "dense_3_feat_in": uint32(64), "dense_3_feat_out": uint32(48),
	})},
	"glm4": {
		Keys:    keys(3, 48, 80, 4, 2, 12, map[string]any{"rope.dimension_count": uint32(8)}),
		Tensors: []string{headName, "blk.0.attn_q.bias"},
	},
	"glm4moe": {
		Keys: keys(4, 48, 80, 4, 2, 12, map[string]any{
			"rope.dimension_count": uint32(6), "expert_count": uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
			"expert_shared_count": uint32(2), "expert_group_count": uint32(4), "expert_group_used_count": uint32(2),
			"leading_dense_block_count": uint32(1), "expert_gating_func": uint32(2), "expert_weights_norm": true,
			"expert_weights_scale": float32(1.5), "nextn_predict_layers": uint32(0),
		}),
		Tensors: []string{headName, "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"},
	},
	// With its base and original context the borders of YaRN are before the first and after the
	// last frequency, so that llama.cpp, which rounds them, has the same.
	"gpt-oss": {
		Keys: keys(5, 96, 32, 4, 2, 16, map[string]any{
			"attention.sliding_window": uint32(24), "rope.freq_base": float32(6), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(8),
			"rope.scaling.original_context_length": uint32(200), "rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1),
			"expert_count": uint32(8), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(32),
		}),
		Tensors: []string{headName, "blk.0.attn_q.bias", "blk.0.attn_output.bias"},
	},
	"granite": {Keys: keys(3, 48, 80, 4, 2, 12, map[string]any{
		"embedding_scale": float32(12), "residual_scale": float32(0.22), "logit_scale": float32(0.5), "attention.scale": float32(0.125),
	})},
	"granitemoe": {Keys: keys(3, 48, 36, 4, 2, 12, map[string]any{
		"embedding_scale": float32(3), "residual_scale": float32(0.22), "logit_scale": float32(0.5), "attention.scale": float32(0.125),
		"expert_count": uint32(9), "expert_used_count": uint32(3), "expert_shared_feed_forward_length": uint32(28),
	})},
	// Every third layer is attention; its first layer carries a state.
	"lfm2": {Keys: keys(6, 48, 80, 6, 0, 8, map[string]any{
		"attention.head_count_kv": eachLayer(6, func(i int) int32 { return int32(i % 3 / 2 * 2) }), "shortconv.l_cache": uint32(3),
		"rope.freq_base": float32(1e6),
	})},
	"lfm2moe": {
		Keys: keys(6, 48, 80, 6, 0, 8, map[string]any{
			"attention.head_count_kv": eachLayer(6, func(i int) int32 { return int32(i % 3 / 2 * 3) }), "shortconv.l_cache": uint32(3),
			"leading_dense_block_count": uint32(2), "expert_gating_func": uint32(2),
			"expert_count": uint32(10), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(28),
		}),
		Tensors: []string{"blk.2.exp_probs_b.bias"},
	},
	"llama": {Keys: keys(3, 48, 80, 6, 2, 10, nil), Tensors: []string{headName}, Factors: []float64{1, 1, 2, 6, 8}},
	"minimax-m2": {
		Keys: keys(3, 48, 24, 4, 2, 16, map[string]any{
			"rope.dimension_count": uint32(8), "expert_count": uint32(10), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(24),
			"expert_gating_func": uint32(2),
		}),
		Tensors: []string{headName},
	},
	"mistral3": {
		Keys: keys(3, 48, 80, 4, 2, 16, map[string]any{
			"rope.scaling.type": "yarn", "rope.scaling.factor": float32(16), "rope.scaling.original_context_length": uint32(32),
			"rope.scaling.yarn_beta_fast": float32(4), "rope.scaling.yarn_beta_slow": float32(0.5), "rope.scaling.yarn_log_multiplier": float32(0.5),
			"attention.temperature_scale": float32(0.3),
		}),
		Tensors: []string{headName},
	},
	"olmo2": {
		Keys: keys(6, 64, 80, 4, 2, 16, map[string]any{
			"attention.sliding_window": uint32(24), "attention.sliding_window_pattern": eachLayer(6, func(i int) bool { return i%4 != 3 }),
			"rope.freq_base": float32(5e5), "rope.scaling.type": "linear", "rope.scaling.factor": float32(4),
		}),
		Tensors: []string{headName},
	},
	// llama.cpp wants as many heads of keys as of queries.
	"olmoe": {
		Keys:    keys(3, 64, 40, 4, 4, 16, map[string]any{"expert_count": uint32(14), "expert_used_count": uint32(4)}),
		Tensors: []string{headName},
	},
	// Its context is beyond the original one.
	"phi3": {
		Keys: keys(3, 48, 80, 4, 2, 12, map[string]any{
			"rope.dimension_count": uint32(8), "context_length": uint32(512), "rope.scaling.original_context_length": uint32(256), "rope.scaling.attn_factor": float32(1.2),
		}),
		Tensors: []string{headName}, Long: []float64{1, 2.5, 7, 16}, Short: []float64{1, 1.25, 1.5, 3},
	},
	"qwen2": {Keys: keys(3, 48, 80, 4, 2, 12, nil)},
	"qwen2moe": {
		Keys: keys(3, 48, 80, 4, 2, 12, map[string]any{
			"expert_count": uint32(10), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
			"expert_shared_feed_forward_length": uint32(28),
		}),
		Tensors: []string{headName},
	},
	"qwen3": {Keys: keys(3, 48, 80, 4, 2, 20, nil), Tensors: []string{headName}},
	// Of its six layers the third and the last are attention. With narrower heads the norm of what
	// a state returns amplifies rounding beyond the bound of the comparisons.
	"qwen35": {Keys: keys(6, 48, 80, 4, 2, 16, map[string]any{
		"rope.dimension_count": uint32(8), "rope.dimension_sections": []int32{2, 1, 1, 0}, "full_attention_interval": uint32(3),
		"ssm.conv_kernel": uint32(4), "ssm.state_size": uint32(48), "ssm.group_count": uint32(2), "ssm.time_step_rank": uint32(6), "ssm.inner_size": uint32(288),
		"nextn_predict_layers": uint32(0),
	})},
	"qwen35moe": {
		Keys: keys(6, 48, 80, 4, 2, 16, map[string]any{
			"rope.dimension_count": uint32(8), "rope.dimension_sections": []int32{2, 1, 1, 0}, "full_attention_interval": uint32(3),
			"ssm.conv_kernel": uint32(4), "ssm.state_size": uint32(48), "ssm.group_count": uint32(2), "ssm.time_step_rank": uint32(4), "ssm.inner_size": uint32(192),
			"expert_count": uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
			"expert_shared_feed_forward_length": uint32(28), "nextn_predict_layers": uint32(0),
		}),
		Tensors: []string{headName},
	},
	"qwen3next": {
		Keys: keys(6, 48, 80, 4, 2, 16, map[string]any{
			"rope.dimension_count": uint32(4), "full_attention_interval": uint32(3),
			"ssm.conv_kernel": uint32(4), "ssm.state_size": uint32(48), "ssm.group_count": uint32(2), "ssm.time_step_rank": uint32(4), "ssm.inner_size": uint32(192),
			"expert_count": uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
			"expert_shared_feed_forward_length": uint32(28),
		}),
		Tensors: []string{headName},
	},
	"qwen3moe": {
		Keys: keys(3, 48, 80, 4, 2, 20, map[string]any{
			"expert_count": uint32(16), "expert_used_count": uint32(4), "expert_feed_forward_length": uint32(24),
		}),
		Tensors: []string{headName},
	},
	"seed_oss": {Keys: keys(3, 40, 80, 4, 2, 16, nil), Tensors: []string{headName, "blk.0.attn_q.bias"}},
	"smollm3":  {Keys: keys(6, 60, 80, 6, 2, 10, map[string]any{"rope.freq_base": float32(5e4)})},
}

const headName = "output.weight"

// Small returns a small shape of an architecture, or of a variant such as gemma4-e2b.
func Small(name string) (Shape, bool) {
	family, ok := small[name]
	if !ok {
		family, ok = smallVariants[name]
	}
	return Shape{Name: "small " + name, Architecture: cmp.Or(family.Architecture, name), Family: &family}, ok
}

// SmallNames lists the names that Small knows, sorted.
func SmallNames() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(small)), maps.Keys(smallVariants))
	slices.Sort(names)
	return names
}

// keys returns the keys that every architecture has, and more.
func keys(layers, hidden, ffn, heads, kvHeads, headDim uint32, more map[string]any) map[string]any {
	out := map[string]any{
		"block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "vocab_size": uint32(211), "context_length": uint32(256),
		"attention.head_count": heads, "attention.head_count_kv": kvHeads, "attention.key_length": headDim, "attention.value_length": headDim,
		"rope.dimension_count": headDim, "attention.layer_norm_rms_epsilon": float32(1e-6),
	}
	maps.Copy(out, more)
	return out
}

// inLayers returns the names of a tensor of some layers.
func inLayers(suffix string, layers ...int) []string {
	out := make([]string, len(layers))
	for i, layer := range layers {
		out[i] = fmt.Sprintf("blk.%d.%s", layer, suffix)
	}
	return out
}

// eachLayer returns a value for each of n layers.
func eachLayer[T any](n int, of func(layer int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = of(i)
	}
	return out
}
