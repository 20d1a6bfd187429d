package synth

import "maps"

// smallVariants are more small shapes, by name. Those of one architecture turn a window or stretched positions
// on and off. gemma4-dense is what transformers can express: its configuration has one width of MLPs,
// whole heads that rotate in layers with a window, and a last layer that sees all positions.
var smallVariants = map[string]Family{
	// As V2-Lite: no latent of queries, weights by softmax. llama.cpp knows it by its 27 layers.
	"deepseek2-lite": {
		Architecture: "deepseek2",
		Keys: keys(27, 32, 48, 4, 1, 28, map[string]any{
			"attention.kv_lora_rank": uint32(20), "attention.value_length": uint32(20),
			"attention.key_length_mla": uint32(20), "attention.value_length_mla": uint32(12), "rope.dimension_count": uint32(8),
			"expert_count": uint32(8), "expert_used_count": uint32(2), "expert_feed_forward_length": uint32(12), "expert_shared_count": uint32(1),
			"leading_dense_block_count": uint32(1),
		}),
		Tensors: []string{headName},
	},
	// As V2: three of four groups by their best.
	"deepseek2-groups": {
		Architecture: "deepseek2",
		Keys: changed("deepseek2", map[string]any{
			"expert_gating_func": uint32(1), "expert_weights_norm": false, "expert_group_used_count": uint32(3), "expert_weights_scale": float32(4),
		}, "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.yarn_log_multiplier"),
		Tensors: []string{headName},
	},
	"gemma4-dense": {
		Architecture: "gemma4",
		Keys: changed("gemma4", map[string]any{
			"block_count": uint32(6), "attention.head_count_kv": eachLayer(6, func(i int) int32 { return 2 - int32(i/5) }), "feed_forward_length": uint32(80),
			"rope.dimension_count_swa": uint32(8), "attention.sliding_window_pattern": eachLayer(6, func(i int) bool { return i != 5 }),
		}),
		Tensors: append(inLayers("attn_v.weight", 0, 1, 2, 3, 4), inLayers("layer_output_scale.weight", 0, 1, 2, 3, 4, 5)...),
		Factors: small["gemma4"].Factors,
	},
	// The 26B, with one stack for gate and up, as converters write it.
	"gemma4-experts": {
		Architecture: "gemma4",
		Keys: changed("gemma4", map[string]any{
			"block_count": uint32(6), "attention.head_count_kv": eachLayer(6, func(i int) int32 { return 2 - int32(i/5) }),
			"feed_forward_length": uint32(80), "rope.dimension_count_swa": uint32(8),
			"attention.sliding_window_pattern": eachLayer(6, func(i int) bool { return i != 5 }),
			"expert_count":                     uint32(12), "expert_used_count": uint32(3), "expert_feed_forward_length": uint32(20),
		}),
		Tensors: append(append(inLayers("attn_v.weight", 0, 1, 2, 3, 4), inLayers("layer_output_scale.weight", 0, 1, 2, 3, 4, 5)...),
			"blk.0.ffn_gate_up_exps.weight"),
		Factors: small["gemma4"].Factors,
	},
	// The borders of YaRN are 3.49 and 7.50, which transformers does not round.
	"gpt-oss-yarn": {
		Architecture: "gpt-oss",
		Keys:         changed("gpt-oss", map[string]any{"rope.freq_base": float32(1000), "rope.scaling.original_context_length": uint32(4096)}),
		Tensors:      small["gpt-oss"].Tensors,
	},
	"granitemoe-plain": {Architecture: "granitemoe", Keys: changed("granitemoe", nil, "expert_shared_feed_forward_length")},
	"mistral":          {Architecture: "llama", Keys: changed("llama", map[string]any{"attention.sliding_window": uint32(24)}), Tensors: []string{headName}},
	"mixtral": {
		Architecture: "llama",
		Keys: changed("llama", map[string]any{
			"feed_forward_length": uint32(40), "expert_count": uint32(8), "expert_used_count": uint32(2),
		}),
		Tensors: []string{headName},
	},
	"olmo2-plain": {
		Architecture: "olmo2",
		Keys:         changed("olmo2", nil, "attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.type", "rope.scaling.factor"),
		Tensors:      []string{headName},
	},
	"olmo3": {Architecture: "olmo2", Keys: changed("olmo2", nil, "rope.scaling.type", "rope.scaling.factor"), Tensors: []string{headName}},
	"phi3-window": {
		Architecture: "phi3",
		Keys: changed("phi3", map[string]any{"attention.sliding_window": uint32(24), "context_length": uint32(256)},
			"rope.scaling.original_context_length", "rope.scaling.attn_factor"),
		Tensors: []string{headName},
	},
}

// changed returns the keys of a small shape with others or more, and without some.
func changed(name string, keys map[string]any, without ...string) map[string]any {
	out := maps.Clone(small[name].Keys)
	maps.Copy(out, keys)
	for _, key := range without {
		delete(out, key)
	}
	return out
}
