package arch

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// maxLatentHeads and maxQueryLatent are those of the engines. Published models have 16 to 128 heads
// and latents of queries of 768 to 1536.
const (
	maxLatentHeads = 1 << 14
	maxQueryLatent = 1 << 16
)

// deepseek2 is DeepSeek V2, V3 and R1, Kimi K2 and GLM-4.7-Flash: attention over a latent, and
// mixtures with a shared expert after the dense layers. V2 weighs experts by softmax and chooses
// groups by their best; V3 and later weigh by sigmoid, have biases of the choice, and choose groups
// by the sum of their two best. Layers that predict further tokens are skipped.
func deepseek2(r *reader) engine.ModelDesc {
	layers := r.bounded("block_count", 0, maxLayers)
	d := r.outer()
	mixer := r.latentMixer(&d)
	d.Vocab = r.vocabulary()
	for _, width := range r.each("feed_forward_length", layers, nil) {
		d.Layers = append(d.Layers, engine.Layer{Mixer: mixer, MLP: engine.MLP{Kind: engine.MLPDense, Width: width}})
	}
	r.skipPredictors(&d)
	shared := r.shared()
	if !r.mixed() { // as in Youtu-LLM
		r.count("leading_dense_block_count", len(d.Layers))
		r.count("expert_feed_forward_length", maxExpertWidth)
		return d
	}
	dense := r.leadingDense(&d)
	e := engine.Experts{Gating: r.gating(r.gatingOfOldFiles(&d)), ChoiceBias: r.hasChoiceBias(dense), SharedWidth: shared}
	e.Groups, e.GroupsUsed = r.groups()
	e.GroupBestTwo = e.Groups > 0 && e.Gating == engine.GateSigmoid
	r.experts(&d, mixture{Experts: e, dense: dense})
	return d
}

// gatingOfOldFiles is the gating of files without the key: softmax, as in DeepSeek V2, but sigmoid
// in GLM-4.7-Flash, which is recognised by its size, as in llama.cpp.
func (r *reader) gatingOfOldFiles(d *engine.ModelDesc) engine.Gating {
	if n := len(d.Layers) + r.skipped; d.Vocab == 154880 && (n == 47 || n == 48) {
		return engine.GateSigmoid
	}
	return engine.GateSoftmax
}

// latentMixer reads attention over a latent, and its rotation into the description. A file says
// that it has one head of keys, as wide as the latent and the rotated key together.
func (r *reader) latentMixer(d *engine.ModelDesc) engine.Mixer {
	m := engine.Mixer{
		Kind: engine.MixLatent, Heads: r.bounded("attention.head_count", 0, maxLatentHeads), KVHeads: 1,
		Latent: r.bounded("attention.kv_lora_rank", 0, maxHeadDim), QueryLatent: r.count("attention.q_lora_rank", maxQueryLatent),
	}
	if old := "blk.0.attn_kv_b.weight"; r.hasTensor(old) && !r.hasTensor(TensorName(engine.RoleKUp, 0)) {
		r.fail(unsupported("tensor %s, which holds the keys and the values of all heads, as in files of before April 2025: convert the model again, "+
			"so that attn_k_b and attn_v_b hold them", old))
	}
	m.KeyDim = r.bounded("attention.key_length_mla", 0, maxHeadDim)
	m.ValueDim = r.bounded("attention.value_length_mla", 0, maxHeadDim)
	r.latentYarn = true
	rope := r.rope(engine.RopeNorm, m.KeyDim)
	d.Ropes = []engine.Rope{rope}
	if r.err != nil {
		return m
	}
	if rope.Dims >= m.KeyDim {
		r.fail(invalid("metadata %srope.dimension_count is %d, want less than the %d of %sattention.key_length_mla", r.prefix, rope.Dims, m.KeyDim, r.prefix))
	}
	for _, want := range []struct {
		key   string
		value int
	}{{"attention.head_count_kv", 1}, {"attention.key_length", m.Latent + rope.Dims}, {"attention.value_length", m.Latent}} {
		if got := r.size(want.key, want.value); got != want.value {
			r.fail(invalid("metadata %s%s is %d, want %d, because %sattention.kv_lora_rank is %d and %srope.dimension_count %d", r.prefix, want.key, got,
				want.value, r.prefix, m.Latent, r.prefix, rope.Dims))
		}
	}
	if r.has("attention.scale") {
		m.Scale = r.within("attention.scale", 0, 1/maxAttnScale, maxAttnScale)
	}
	if r.scoreFactor != 0 {
		scale := float64(m.Scale)
		if scale == 0 {
			scale = 1 / math.Sqrt(float64(m.KeyDim))
		}
		m.Scale = float32(r.scoreFactor * scale)
	}
	return m
}
