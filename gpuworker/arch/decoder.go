package arch

import (
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

const (
	embeddingName = "token_embd.weight"
	headName      = "output.weight"
)

// decoder reads what most families have in common: layers of a norm, attention with one rotation, a
// norm and SwiGLU, with the biases whose tensors layer 0 has. A family changes the rest.
func (r *reader) decoder(style engine.RopeStyle) engine.ModelDesc { return r.decoderOf(style, 0) }

// decoderOf is decoder with a preset for the width of MLPs; 0 = none.
func (r *reader) decoderOf(style engine.RopeStyle, width int) engine.ModelDesc {
	layers := r.bounded("block_count", 0, maxLayers)
	d := r.outer()
	var presets []int
	if width > 0 {
		presets = slices.Repeat([]int{width}, layers)
	}
	mixers, widths := r.attention(d.Hidden, layers), r.each("feed_forward_length", layers, presets)
	d.Ropes = []engine.Rope{r.rope(style, mixers[0].KeyDim)}
	d.Vocab = r.vocabulary()
	if r.err != nil {
		return d
	}
	d.Layers = make([]engine.Layer, layers)
	for i := range d.Layers {
		d.Layers[i] = engine.Layer{Mixer: mixers[i], MLP: engine.MLP{Kind: engine.MLPDense, Width: widths[i]}}
	}
	return d
}

// outer reads the numbers of a decoder that belong to no layer, except its vocabulary.
func (r *reader) outer() engine.ModelDesc {
	d := engine.ModelDesc{
		Hidden:   r.size("embedding_length", 0),
		NormEps:  r.positive("attention.layer_norm_rms_epsilon", 0),
		Context:  r.size("context_length", 0),
		TiedHead: !r.hasTensor(headName),
	}
	if d.Context > engine.MaxContext {
		r.fail(invalid("metadata %scontext_length is %d, want at most %d", r.prefix, d.Context, engine.MaxContext))
	}
	return d
}

// attention reads the heads of every layer. Their numbers may differ from layer to layer, their
// width may not.
func (r *reader) attention(hidden, layers int) []engine.Mixer {
	heads := r.each("attention.head_count", layers, nil)
	kvHeads := r.each("attention.head_count_kv", layers, heads)
	if !r.has("attention.key_length") && hidden%heads[0] != 0 {
		r.fail(invalid("width %d is not divisible by %d heads and metadata %sattention.key_length is missing", hidden, heads[0], r.prefix))
	}
	m := engine.Mixer{
		Kind:    engine.MixAttention,
		QKVBias: r.hasTensor("blk.0.attn_q.bias") || r.hasTensor("blk.0.attn_qkv.bias"),
		OutBias: r.hasTensor("blk.0.attn_output.bias"),
		KeyDim:  r.size("attention.key_length", max(1, hidden/heads[0])),
	}
	if m.KeyDim > maxHeadDim {
		r.fail(invalid("heads have %d dimensions, want at most %d", m.KeyDim, maxHeadDim))
	}
	m.ValueDim = r.size("attention.value_length", m.KeyDim)
	if m.ValueDim != m.KeyDim {
		r.fail(unsupported("value length %d apart from key length %d", m.ValueDim, m.KeyDim))
	}
	if r.has("attention.scale") {
		m.Scale = r.within("attention.scale", 0, 1/maxAttnScale, maxAttnScale)
	}
	out := make([]engine.Mixer, layers)
	for i := range out {
		out[i] = m
		out[i].Heads, out[i].KVHeads = heads[i], kvHeads[i]
		if kvHeads[i] > 0 && heads[i]%kvHeads[i] != 0 {
			r.fail(invalid("%d heads do not share %d key-value heads evenly", heads[i], kvHeads[i]))
		}
	}
	return out
}

// ropeFactors reads a tensor of divisors of frequencies. It returns nil if the file has none.
func (r *reader) ropeFactors(name string, dims int) []float64 {
	t, ok := r.file.Tensor(name)
	if !ok || r.err != nil {
		return nil
	}
	if err := check(t, []int64{int64(dims / 2)}, vectorTypes); err != nil {
		r.fail(err)
		return nil
	}
	raw := make([]byte, t.Size)
	if err := r.file.ReadAt(t, raw, 0); err != nil {
		r.fail(err)
		return nil
	}
	r.ignore(name)
	factors := make([]float64, t.Elements())
	if err := dequant.Dequantize(t.Type, raw, factors); err != nil {
		r.fail(err)
		return nil
	}
	for i, v := range factors {
		if !(v > 0) || math.IsInf(v, 0) {
			r.fail(invalid("tensor %s: factor %d is %v, want a finite number above 0: the file is damaged, download or convert it again", t.Name, i, v))
		}
	}
	return factors
}

// vocabulary reads the vocabulary's size from the metadata or from the embedding's rows.
func (r *reader) vocabulary() int {
	embedding, ok := r.file.Tensor(embeddingName)
	if !ok && !r.has("vocab_size") {
		r.fail(invalid("tensor %s is missing", embeddingName))
		return 1
	}
	rows := 0
	if n := dim(embedding.Dims, 1); len(embedding.Dims) > 1 && n <= maxSize {
		rows = int(n)
	}
	vocab := r.size("vocab_size", rows)
	if tokens, ok := r.meta.Value("tokenizer.ggml.tokens"); ok && tokens.Type == gguf.Array && tokens.Len > uint64(vocab) {
		r.fail(invalid("tokenizer has %d tokens and the model %d", tokens.Len, vocab))
	}
	return vocab
}
