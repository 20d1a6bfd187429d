package synth

import "maps"

// variant is a small shape that differs from another one by keys.
type variant struct {
	of      string
	without []string       // keys
	keys    map[string]any // in place of others or more
	tensors []string       // in place of the other's; nil = the same
	divided bool           // keeps the divisors of frequencies
}

// smallVariants are small shapes by name. Files of one architecture turn a window or stretched positions
// on and off. gemma4-dense is what transformers can express: its configuration has one width of MLPs,
// whole heads that rotate in layers with a window, and a last layer that sees all positions.
var smallVariants = map[string]variant{
	"gemma4-dense": {
		of: "gemma4", divided: true,
		keys: map[string]any{
			"block_count": uint32(6), "attention.head_count_kv": eachLayer(6, func(i int) int32 { return 2 - int32(i/5) }), "feed_forward_length": uint32(80),
			"rope.dimension_count_swa": uint32(8), "attention.sliding_window_pattern": eachLayer(6, func(i int) bool { return i != 5 }),
		},
		tensors: append(inLayers("attn_v.weight", 0, 1, 2, 3, 4), inLayers("layer_output_scale.weight", 0, 1, 2, 3, 4, 5)...),
	},
	"mistral":     {of: "llama", keys: map[string]any{"attention.sliding_window": uint32(24)}},
	"olmo2-plain": {of: "olmo2", without: []string{"attention.sliding_window", "attention.sliding_window_pattern", "rope.scaling.type", "rope.scaling.factor"}},
	"olmo3":       {of: "olmo2", without: []string{"rope.scaling.type", "rope.scaling.factor"}},
	"phi3-window": {
		of: "phi3", without: []string{"rope.scaling.original_context_length", "rope.scaling.attn_factor"},
		keys: map[string]any{"attention.sliding_window": uint32(24), "context_length": uint32(256)},
	},
}

// family returns the shape's family and its architecture.
func (v variant) family() (Family, string) {
	f := small[v.of]
	f.Keys = maps.Clone(f.Keys)
	for _, key := range v.without {
		delete(f.Keys, key)
	}
	maps.Copy(f.Keys, v.keys)
	if v.tensors != nil {
		f.Tensors = v.tensors
	}
	if !v.divided {
		f.Factors, f.Long, f.Short = nil, nil, nil
	}
	return f, v.of
}
