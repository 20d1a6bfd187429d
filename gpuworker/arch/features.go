package arch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// feature is metadata that changes results in a way that is not built. harmless says whether a value leaves them alone.
type feature struct {
	key      string
	name     string
	harmless func(v float64) bool
}

func zero(v float64) bool        { return v == 0 }
func zeroOrUnset(v float64) bool { return v == 0 || v == -1 }
func zeroOrOne(v float64) bool   { return v == 0 || v == 1 }
func one(v float64) bool         { return v == 1 }

var features = []feature{
	{"expert_count", "mixture of experts", zero},
	{"expert_used_count", "mixture of experts", zero},
	{"expert_shared_count", "mixture of experts", zero},
	{"attn_logit_softcapping", "attention soft cap", zero},
	{"final_logit_softcapping", "logit soft cap", zero},
	{"logit_scale", "logit scale", zeroOrOne},
	{"embedding_scale", "embedding scale", zeroOrOne},
	{"residual_scale", "residual scale", zeroOrOne},
	{"attention.clamp_kqv", "clamped attention inputs", zero},
	{"attention.max_alibi_bias", "alibi", zero},
	{"attention.temperature_length", "attention temperature", zero},
	{"attention.temperature_scale", "attention temperature", zero},
	{"attention.causal", "attention that is not causal", one},
	{"use_parallel_residual", "parallel residual", zero},
	{"rope.scaling.attn_factor", "rope attention factor", zeroOrOne},
	{"nextn_predict_layers", "layers that predict further tokens", zero},
	{"pooling_type", "pooled output: the model computes embeddings and generates no text", zeroOrUnset},
}

// refuseFeatures returns an error that names the first feature in use that is not built.
func refuseFeatures(meta *gguf.Metadata, name string) error {
	for _, f := range features {
		key := name + "." + f.key
		v, ok, err := number(meta, key)
		if err != nil {
			return err
		}
		if ok && !f.harmless(v) {
			return unsupported("%s (metadata %s is %v)", f.name, key, v)
		}
	}
	if key := name + ".rope.dimension_sections"; present(meta, key) {
		return unsupported("rope in sections (metadata %s)", key)
	}
	return refuseWindow(meta, name)
}

// refuseWindow refuses a sliding window unless it spans the whole context.
func refuseWindow(meta *gguf.Metadata, name string) error {
	key := name + ".attention.sliding_window"
	window, ok, err := meta.Uint(key)
	if err != nil {
		return unsupported("sliding window (%v)", err)
	}
	context, _, err := meta.Uint(name + ".context_length")
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

// number returns a number of any type, or a truth value as 0 or 1.
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
