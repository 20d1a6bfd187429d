package arch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// feature is metadata that changes results. harmless reports whether a value changes nothing.
type feature struct {
	key      string
	name     string
	harmless func(v float64) bool
}

func zero(v float64) bool      { return v == 0 }
func zeroOrOne(v float64) bool { return v == 0 || v == 1 }
func one(v float64) bool       { return v == 1 }

// mixtureOfExperts is the name of the keys that say how many experts a model has and how large they
// are.
const mixtureOfExperts = "mixture of experts"

// features are the keys that change results in some families. A family that reads a key implements
// it. In a family that does not, a file with a value that is not harmless is refused.
var features = []feature{
	{"expert_count", mixtureOfExperts, zero},
	{"expert_used_count", mixtureOfExperts, zero},
	{"expert_feed_forward_length", mixtureOfExperts, zero},
	{"expert_gating_func", mixtureOfExperts, zero},
	{"expert_weights_norm", mixtureOfExperts, zero},
	{"expert_weights_scale", mixtureOfExperts, zeroOrOne},
	{"expert_shared_count", "shared expert", zero},
	{"expert_shared_feed_forward_length", "shared expert", zero},
	{"leading_dense_block_count", "dense layers before those with experts", zero},
	{"interleave_moe_layer_step", "dense layers between those with experts", zeroOrOne},
	{"moe_every_n_layers", "dense layers between those with experts", zeroOrOne},
	{"expert_group_count", "groups of experts", zeroOrOne},
	{"expert_group_used_count", "groups of experts", zeroOrOne},
	{"expert_group_scale", "experts of a group that share a part", zeroOrOne},
	{"experts_per_group", "experts of a group that share a part", zero},
	{"expert_chunk_feed_forward_length", "experts of a group that share a part", zero},
	{"moe_latent_size", "experts of another width than the layer's", zero},
	{"router_logit_softcapping", "a soft cap of the router", zero},
	{"attn_logit_softcapping", "attention soft cap", zero},
	{"final_logit_softcapping", "logit soft cap", zero},
	{"logit_scale", "logit scale", zeroOrOne},
	{"embedding_scale", "embedding scale", zeroOrOne},
	{"residual_scale", "residual scale", zeroOrOne},
	{"embedding_length_per_layer_input", "embeddings by layer", zero},
	{"attention.clamp_kqv", "clamped attention inputs", zero},
	{"attention.max_alibi_bias", "alibi", zero},
	{"attention.output_scale", "scale of the attention's output", zeroOrOne},
	{"attention.value_scale", "scale of values", zeroOrOne},
	{"attention.temperature_length", "attention temperature", zero},
	{"attention.temperature_scale", "attention temperature", zero},
	{"attention.causal", "attention that is not causal", one},
	{"attention.key_length_mla", "attention over a latent", zero},
	{"attention.value_length_mla", "attention over a latent", zero},
	{"attention.q_lora_rank", "attention over a latent", zero},
	{"attention.kv_lora_rank", "attention over a latent", zero},
	{"attention.key_length_swa", "heads of another width in layers with a window", zero},
	{"attention.value_length_swa", "heads of another width in layers with a window", zero},
	{"attention.shared_kv_layers", "layers that share keys and values", zero},
	{"attention.group_norm_groups", "group norms", zero},
	{"full_attention_interval", "layers of another kind than attention", zeroOrOne},
	{"ssm.conv_kernel", "layers with a recurrent state", zero},
	{"ssm.inner_size", "layers with a recurrent state", zero},
	{"ssm.state_size", "layers with a recurrent state", zero},
	{"ssm.time_step_rank", "layers with a recurrent state", zero},
	{"ssm.group_count", "layers with a recurrent state", zero},
	{"ssm.dt_b_c_rms", "norms of a recurrent state's inputs", zero},
	{"shortconv.l_cache", "short convolutions", zero},
	{"use_parallel_residual", "parallel residual", zero},
	{"swin_norm", "norms after the residual", zero},
	{"rope.scaling.alpha", "rope scaling by alpha", zero},
	{"rope.freq_base_swa", "another rope in layers with a window", zero},
	{"rope.dimension_count_swa", "another rope in layers with a window", zero},
	{"nextn_predict_layers", "layers that predict further tokens", zero},
	{"dense_2_feat_out", "dense layers after the decoder", zero},
	{"dense_3_feat_out", "dense layers after the decoder", zero},
}

// lists are keys that change results whatever their value is, if the file has them.
var lists = []feature{
	{key: "rope.dimension_sections", name: "rope in sections"},
	{key: "attention.sliding_window_pattern", name: "sliding window by layer"},
	{key: "swiglu_clamp_exp", name: "clamped SwiGLU"},
	{key: "swiglu_clamp_shexp", name: "clamped SwiGLU"},
	{key: "attention.recurrent_layers", name: "layers with a recurrent state"},
	{key: "deepstack_mapping", name: "inputs between layers"},
}

// refuseUnread returns an error that names the first feature in use that the family does not read.
func (r *reader) refuseUnread() error {
	for _, f := range features {
		key := r.prefix + f.key
		if r.read[key] {
			continue
		}
		v, ok, err := number(r.meta, key)
		if err != nil {
			return err
		}
		if ok && !f.harmless(v) {
			return unsupported("%s (metadata %s is %v)", f.name, key, v)
		}
	}
	for _, f := range lists {
		if key := r.prefix + f.key; present(r.meta, key) && !r.read[key] {
			return unsupported("%s (metadata %s)", f.name, key)
		}
	}
	return r.refuseWindow()
}

// refuseWindow refuses a sliding window that the family does not read, unless it spans the whole
// context.
func (r *reader) refuseWindow() error {
	key := r.prefix + "attention.sliding_window"
	if r.read[key] {
		return nil
	}
	window, ok, err := r.meta.Uint(key)
	if err != nil {
		return unsupported("sliding window (%v)", err)
	}
	context, _, err := r.meta.Uint(r.prefix + "context_length")
	if err != nil {
		return err
	}
	if ok && window > 0 && window < context {
		return unsupported("sliding window (metadata %s is %d, context %d)", key, window, context)
	}
	return nil
}

func present(meta *gguf.Metadata, key string) bool {
	_, ok := meta.Value(key)
	return ok
}

// number returns a number of any type, or a bool as 0 or 1.
func number(meta *gguf.Metadata, key string) (float64, bool, error) {
	v, ok := meta.Value(key)
	if !ok {
		return 0, false, nil
	}
	switch v.Type {
	case gguf.Bool:
		if set, _, err := meta.Bool(key); err != nil || !set {
			return 0, true, err
		}
		return 1, true, nil
	case gguf.Float32, gguf.Float64:
		return meta.Float(key)
	case gguf.String, gguf.Array:
		return 0, true, fmt.Errorf("metadata %s is %v, want a number: %w", key, v.Type, gguf.ErrValueType)
	}
	n, ok, err := meta.Int(key)
	return float64(n), ok, err
}
