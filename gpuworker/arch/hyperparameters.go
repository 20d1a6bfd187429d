package arch

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

const (
	// maxSize bounds every count and width, so that products of two stay far inside an int.
	maxSize = 1 << 24
	// What models use lies far inside these bounds: bases of 500 to 4e9, positions stretched up to 64 times, and heads
	// whose products are scaled by 1/16 to 1.
	maxRopeBase  = 1e12
	maxRopeScale = 1e4
	maxAttnScale = 1e4
)

// reader reads metadata under an architecture's prefix and keeps the first error.
type reader struct {
	meta   *gguf.Metadata
	prefix string
	err    error
}

// size returns a whole number from 1 to maxSize; preset if the key is absent, and then an error if preset is 0.
func (r *reader) size(key string, preset int) int {
	key = r.prefix + key
	if r.err != nil {
		return 1
	}
	v, ok, err := r.meta.Uint(key)
	if err != nil {
		v, ok, err = r.uniform(key, err)
	}
	switch {
	case err != nil:
		r.err = err
	case !ok && preset == 0:
		r.err = invalid("metadata %s is missing", key)
	case !ok:
		return preset
	case v == 0 || v > maxSize:
		r.err = invalid("metadata %s is %d, want 1 to %d", key, v, maxSize)
	default:
		return int(v)
	}
	return 1
}

// uniform returns the value of an array that holds one number for every layer, if it is the same for all.
func (r *reader) uniform(key string, scalarErr error) (uint64, bool, error) {
	each, ok, err := r.meta.Ints(key)
	if err != nil || !ok || len(each) == 0 {
		return 0, false, scalarErr
	}
	for _, v := range each {
		if v != each[0] || v < 0 {
			return 0, false, unsupported("metadata %s differs from layer to layer", key)
		}
	}
	return uint64(each[0]), true, nil
}

// positive returns a finite number above zero as float32; preset if the key is absent, an error if preset is 0.
func (r *reader) positive(key string, preset float32) float32 {
	key = r.prefix + key
	if r.err != nil {
		return 1
	}
	v, ok, err := r.meta.Float(key)
	f := float32(v)
	switch {
	case err != nil:
		r.err = err
	case !ok && preset == 0:
		r.err = invalid("metadata %s is missing", key)
	case !ok:
		return preset
	case !(f > 0) || math.IsInf(float64(f), 0):
		r.err = invalid("metadata %s is %v, want a finite number above 0: the tool that wrote the file is at fault, "+
			"convert the model again or get it from elsewhere", key, v)
	default:
		return f
	}
	return 1
}

// within is positive for a number outside whose bounds results would be infinite or no numbers at all.
func (r *reader) within(key string, preset, least, most float32) float32 {
	f := r.positive(key, preset)
	if r.err == nil && (f < least || f > most) {
		r.err = invalid("metadata %s%s is %g, want %g to %g: the tool that wrote the file is at fault, convert the model again or get it from elsewhere",
			r.prefix, key, f, least, most)
	}
	return f
}

// has reports whether the key is present.
func (r *reader) has(key string) bool {
	_, ok := r.meta.Value(r.prefix + key)
	return ok
}

func readHyperparameters(f *gguf.File, name string, fam family) (engine.ModelDesc, error) {
	r := &reader{meta: f.Metadata(), prefix: name + "."}
	d := engine.ModelDesc{
		Layers:    r.size("block_count", 0),
		Hidden:    r.size("embedding_length", 0),
		Heads:     r.size("attention.head_count", 0),
		FFN:       r.size("feed_forward_length", 0),
		Context:   r.size("context_length", 0),
		NormEps:   r.positive("attention.layer_norm_rms_epsilon", 0),
		RopeStyle: fam.rope,
		RopeBase:  r.within("rope.freq_base", 10000, 1, maxRopeBase),
		QKNorm:    fam.qkNorm,
	}
	if r.err == nil && d.Context > engine.MaxContext {
		return d, invalid("metadata %s.context_length is %d, want at most %d", name, d.Context, engine.MaxContext)
	}
	d.KVHeads = r.size("attention.head_count_kv", d.Heads)
	if r.err == nil && d.Heads%d.KVHeads != 0 {
		return d, invalid("%d heads do not share %d key-value heads evenly", d.Heads, d.KVHeads)
	}
	if r.err == nil && !r.has("attention.key_length") && d.Hidden%d.Heads != 0 {
		return d, invalid("width %d is not divisible by %d heads and metadata %s.attention.key_length is missing", d.Hidden, d.Heads, name)
	}
	d.HeadDim = r.size("attention.key_length", max(1, d.Hidden/d.Heads))
	if v := r.size("attention.value_length", d.HeadDim); v != d.HeadDim && r.err == nil {
		return d, unsupported("value length %d apart from key length %d", v, d.HeadDim)
	}
	d.RopeDims = r.size("rope.dimension_count", d.HeadDim)
	if r.err == nil && (d.RopeDims%2 != 0 || d.RopeDims > d.HeadDim) {
		return d, invalid("metadata %s.rope.dimension_count is %d, want an even number up to the head's %d", name, d.RopeDims, d.HeadDim)
	}
	if r.has("attention.scale") {
		d.AttnScale = r.within("attention.scale", 0, 1/maxAttnScale, maxAttnScale)
	}
	d.RopeScale = r.ropeScale()
	if r.err != nil {
		return d, r.err
	}
	err := readVocabulary(f, r, &d)
	return d, err
}

// ropeScale returns what positions are divided by. A factor without a type is linear, as files older than the type are.
func (r *reader) ropeScale() float32 {
	kind, ok, err := r.meta.String(r.prefix + "rope.scaling.type")
	switch {
	case r.err != nil:
		return 1
	case err != nil:
		r.err = err
		return 1
	case ok && kind == "none":
		return 1
	case ok && kind != "linear":
		r.err = unsupported("rope scaling %.64q", kind)
		return 1
	case r.has("rope.scaling.factor"):
		return r.within("rope.scaling.factor", 0, 1/maxRopeScale, maxRopeScale)
	}
	return r.within("rope.scale_linear", 1, 1/maxRopeScale, maxRopeScale)
}

// readVocabulary takes the vocabulary's size from the metadata or from the embedding's rows.
func readVocabulary(f *gguf.File, r *reader, d *engine.ModelDesc) error {
	embedding, ok := f.Tensor(fileNames[engine.RoleEmbedding])
	if !ok {
		return invalid("tensor %s is missing", fileNames[engine.RoleEmbedding])
	}
	rows := 0
	if n := dim(embedding.Dims, 1); len(embedding.Dims) > 1 && n <= maxSize {
		rows = int(n)
	}
	if d.Vocab = r.size("vocab_size", rows); r.err != nil {
		return r.err
	}
	if tokens, ok := r.meta.Value("tokenizer.ggml.tokens"); ok && tokens.Type == gguf.Array && tokens.Len > uint64(d.Vocab) {
		return invalid("tokenizer has %d tokens and the model %d", tokens.Len, d.Vocab)
	}
	return nil
}
