package synth

import (
	"maps"
	"slices"
)

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
	// https://huggingface.co/microsoft/Phi-3-mini-4k-instruct
	family("phi3-mini", "phi3", keys(32, 3072, 8192, 32, 32, 96, map[string]any{
		"vocab_size": uint32(32064), "context_length": uint32(4096), "attention.sliding_window": uint32(2047),
		"attention.layer_norm_rms_epsilon": float32(1e-5), "rope.scaling.original_context_length": uint32(4096),
	}), headName),
	// https://huggingface.co/microsoft/phi-4
	family("phi4-14b", "phi3", keys(40, 5120, 17920, 40, 10, 128, map[string]any{
		"vocab_size": uint32(100352), "context_length": uint32(16384), "rope.freq_base": float32(250000),
		"attention.layer_norm_rms_epsilon": float32(1e-5), "rope.scaling.original_context_length": uint32(16384),
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
	gptOSSPublished("gpt-oss-20b", 24, 32),
	// https://huggingface.co/openai/gpt-oss-120b
	gptOSSPublished("gpt-oss-120b", 36, 128),
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
	// https://huggingface.co/deepseek-ai/DeepSeek-V2-Lite
	withExperts(latentPublished("deepseek-v2-lite", 27, 2048, 10944, 16, 128, 128, map[string]any{
		"vocab_size": uint32(102400), "context_length": uint32(163840), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(40),
		"rope.scaling.original_context_length": uint32(4096), "rope.scaling.yarn_log_multiplier": float32(0.0707), "expert_shared_count": uint32(2),
		"expert_gating_func": uint32(1),
	}), 64, 6, 1408),
	// https://huggingface.co/zai-org/GLM-4.7-Flash
	withExperts(latentPublished("glm-4.7-flash", 47, 2048, 10240, 20, 192, 256, map[string]any{
		"vocab_size": uint32(154880), "context_length": uint32(202752), "attention.layer_norm_rms_epsilon": float32(1e-5),
		"rope.freq_base": float32(1e6), "attention.q_lora_rank": uint32(768), "expert_shared_count": uint32(1), "expert_gating_func": uint32(2),
		"expert_weights_norm": true, "expert_weights_scale": float32(1.8),
	}, "blk.1.exp_probs_b.bias"), 64, 4, 1536),
	// https://huggingface.co/LiquidAI/LFM2-1.2B
	family("lfm2-1.2b", "lfm2", keys(16, 2048, 8192, 32, 0, 64, map[string]any{
		"vocab_size": uint32(65536), "context_length": uint32(128000), "attention.layer_norm_rms_epsilon": float32(1e-5),
		"attention.head_count_kv": eachLayer(16, func(i int) int32 {
			if i == 2 || i == 5 || i >= 8 && i%2 == 0 && i < 16 {
				return 8
			}
			return 0
		}), "shortconv.l_cache": uint32(3), "rope.freq_base": float32(1e6),
	})),
	// https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct
	withExperts(deltaPublished("qwen3-next-80b-a3b", "qwen3next", 48, 2048, 5120, map[string]any{
		"vocab_size": uint32(151936), "expert_shared_feed_forward_length": uint32(512),
	}), 512, 10, 512),
	// https://huggingface.co/Qwen/Qwen3.5-35B-A3B
	withExperts(deltaPublished("qwen3.5-35b-a3b", "qwen35moe", 40, 2048, 512, map[string]any{
		"vocab_size": uint32(248320), "expert_shared_feed_forward_length": uint32(512), "rope.dimension_sections": []int32{11, 11, 10, 0},
	}), 256, 8, 512),
	// https://huggingface.co/Qwen/Qwen3.5-27B
	deltaPublished("qwen3.5-27b", "qwen35", 64, 5120, 17408, map[string]any{
		"vocab_size": uint32(248320), "rope.dimension_sections": []int32{11, 11, 10, 0}, "attention.head_count": uint32(24),
		"attention.head_count_kv": uint32(4), "ssm.time_step_rank": uint32(48), "ssm.inner_size": uint32(6144),
	}),
	// https://huggingface.co/Qwen/Qwen3.5-0.8B
	tied(deltaPublished("qwen3.5-0.8b", "qwen35", 24, 1024, 3584, map[string]any{
		"vocab_size": uint32(248320), "rope.dimension_sections": []int32{11, 11, 10, 0}, "attention.head_count": uint32(8),
		"ssm.time_step_rank": uint32(16), "ssm.inner_size": uint32(2048),
	})),
}

func gptOSSPublished(name string, layers, experts uint32) Shape {
	return withExperts(family(name, "gpt-oss", keys(layers, 2880, 2880, 64, 8, 64, map[string]any{
		"vocab_size": uint32(201088), "context_length": uint32(131072), "attention.layer_norm_rms_epsilon": float32(1e-5),
		"attention.sliding_window": uint32(128), "rope.freq_base": float32(150000), "rope.scaling.type": "yarn", "rope.scaling.factor": float32(32),
		"rope.scaling.original_context_length": uint32(4096), "rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1),
	}), headName), experts, 4, 2880, "blk.0.attn_q.bias", "blk.0.attn_output.bias")
}

// latentPublished has attention over a latent of 512 and a rotated key of 64, and one dense layer
// before those with experts.
func latentPublished(name string, layers, hidden, ffn, heads, plain, value uint32, more map[string]any, tensors ...string) Shape {
	of := keys(layers, hidden, ffn, heads, 1, 512+64, map[string]any{
		"attention.kv_lora_rank": uint32(512), "attention.value_length": uint32(512), "rope.dimension_count": uint32(64),
		"attention.key_length_mla": plain + 64, "attention.value_length_mla": value, "leading_dense_block_count": uint32(1),
	})
	maps.Copy(of, more)
	return family(name, "deepseek2", of, append(tensors, headName)...)
}

// deltaPublished is a Qwen 3 Next or 3.5, with 32 value heads unless more says otherwise.
func deltaPublished(name, architecture string, layers, hidden, ffn uint32, more map[string]any) Shape {
	of := keys(layers, hidden, ffn, 16, 2, 256, map[string]any{
		"context_length": uint32(262144), "rope.dimension_count": uint32(64), "rope.freq_base": float32(1e7), "ssm.conv_kernel": uint32(4),
		"ssm.state_size": uint32(128), "ssm.group_count": uint32(16), "ssm.time_step_rank": uint32(32), "ssm.inner_size": uint32(4096),
	})
	maps.Copy(of, more)
	return family(name, architecture, of, headName)
}

// tied takes the head out of a shape. Its model multiplies by the embedding instead.
func tied(s Shape) Shape {
	s.Family.Tensors = slices.DeleteFunc(s.Family.Tensors, func(name string) bool { return name == headName })
	return s
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
