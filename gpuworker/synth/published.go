package synth

import "maps"

// published are shapes of published models whose layers are not those of a Uniform.
var published = []Shape{
	// https://huggingface.co/google/gemma-3-1b-it
	family("gemma3-1b", "gemma3", keys(26, 1152, 6912, 4, 1, 256, map[string]any{
		"vocab_size": uint32(262144), "context_length": uint32(32768), "attention.sliding_window": uint32(512), "rope.freq_base": float32(1e6),
	})),
	// https://huggingface.co/google/gemma-3-12b-it
	family("gemma3-12b", "gemma3", keys(48, 3840, 15360, 16, 8, 256, map[string]any{
		"vocab_size": uint32(262208), "context_length": uint32(131072), "attention.sliding_window": uint32(1024), "rope.freq_base": float32(1e6),
		"rope.scaling.type": "linear", "rope.scaling.factor": float32(8),
	})),
	// https://huggingface.co/microsoft/phi-4
	family("phi4-14b", "phi3", keys(40, 5120, 17920, 40, 10, 128, map[string]any{
		"vocab_size": uint32(100352), "context_length": uint32(16384), "rope.freq_base": float32(250000),
		"rope.scaling.original_context_length": uint32(16384),
	}), headName),
	// https://huggingface.co/mistralai/Mistral-Small-24B-Instruct-2501
	family("mistral-small-24b", "llama", keys(40, 5120, 32768, 32, 8, 128, map[string]any{
		"vocab_size": uint32(131072), "context_length": uint32(32768), "rope.freq_base": float32(1e8),
	}), headName),
	// https://huggingface.co/google/gemma-4-31B-it
	gemma4Published("gemma4-31b", 60, 5376, 21504, 32, 16, 4),
	// https://huggingface.co/google/gemma-4-26B-A4B-it
	withExperts(gemma4Published("gemma4-26b-a4b", 30, 2816, 2112, 16, 8, 2), 128, 8, 704, "blk.0.ffn_gate_up_exps.weight"),
	// https://huggingface.co/openai/gpt-oss-20b
	withExperts(family("gpt-oss-20b", "gpt-oss", keys(24, 2880, 2880, 64, 8, 64, map[string]any{
		"vocab_size": uint32(201088), "context_length": uint32(131072), "attention.layer_norm_rms_epsilon": float32(1e-5),
		"attention.sliding_window": uint32(128), "rope.freq_base": float32(150000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(32),
		"rope.scaling.original_context_length": uint32(4096), "rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1),
	}), headName), 32, 4, 2880, "blk.0.attn_q.bias", "blk.0.attn_output.bias"),
	// https://huggingface.co/allenai/OLMoE-1B-7B-0924
	family("olmoe-1b-7b", "olmoe", keys(16, 2048, 1024, 16, 16, 128, map[string]any{
		"vocab_size": uint32(50304), "context_length": uint32(4096), "attention.layer_norm_rms_epsilon": float32(1e-5),
		"expert_count": uint32(64), "expert_used_count": uint32(8),
	}), headName),
	// https://huggingface.co/Qwen/Qwen3-30B-A3B
	family("qwen3-30b-a3b", "qwen3moe", keys(48, 2048, 6144, 32, 4, 128, map[string]any{
		"vocab_size": uint32(151936), "context_length": uint32(40960), "rope.freq_base": float32(1e6),
		"expert_count": uint32(128), "expert_used_count": uint32(8), "expert_feed_forward_length": uint32(768),
	}), headName),
}

func family(name, architecture string, keys map[string]any, tensors ...string) Shape {
	return Shape{Name: name, Architecture: architecture, Family: &Family{Keys: keys, Tensors: tensors}}
}

// withExperts adds experts to a shape, and tensors.
func withExperts(s Shape, count, used, width uint32, tensors ...string) Shape {
	maps.Copy(s.Family.Keys, map[string]any{"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width})
	s.Family.Tensors = append(s.Family.Tensors, tensors...)
	return s
}

// gemma4Published is a dense Gemma 4. Every sixth layer sees all positions, has wider heads, of which it
// rotates a quarter, fewer of them for keys, and no V.
func gemma4Published(name string, layers, hidden, ffn, heads, kvHeads, wideKVHeads int) Shape {
	const width, wide = 256, 512
	global := func(i int) bool { return i%6 == 5 }
	var withV, all []int
	for i := range layers {
		all = append(all, i)
		if !global(i) {
			withV = append(withV, i)
		}
	}
	divisors := make([]float64, wide/2)
	for i := range divisors {
		divisors[i] = 1
		if i >= wide/8 {
			divisors[i] = 1e30
		}
	}
	return Shape{Name: name, Architecture: "gemma4", Family: &Family{
		Keys: keys(uint32(layers), uint32(hidden), uint32(ffn), uint32(heads), 0, wide, map[string]any{
			"vocab_size": uint32(262144), "context_length": uint32(262144),
			"attention.head_count_kv": eachLayer(layers, func(i int) int32 {
				if global(i) {
					return int32(wideKVHeads)
				}
				return int32(kvHeads)
			}),
			"attention.key_length_swa": uint32(width), "attention.value_length_swa": uint32(width), "rope.dimension_count_swa": uint32(width),
			"attention.sliding_window": uint32(1024), "attention.sliding_window_pattern": eachLayer(layers, func(i int) bool { return !global(i) }),
			"rope.freq_base": float32(1e6), "rope.freq_base_swa": float32(1e4), "final_logit_softcapping": float32(30),
			"embedding_length_per_layer_input": uint32(0), "attention.shared_kv_layers": uint32(0),
		}),
		Tensors: append(inLayers("attn_v.weight", withV...), inLayers("layer_output_scale.weight", all...)...),
		Factors: divisors,
	}}
}
