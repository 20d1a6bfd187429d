package arch

import (
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// maxTaps and maxSSMHeads are those of the engines. Published models have 4 taps and 16 to 64
// heads.
const (
	maxTaps     = 64
	maxSSMHeads = 1 << 14
)

// deltaNet makes layers gated delta nets, as in Qwen 3 Next and 3.5, but every fourth, whose Q has
// a gate for each head. tiled: the file has the value heads in the order in which key heads repeat.
func (r *reader) deltaNet(d *engine.ModelDesc, tiled bool) {
	recurrent := r.recurrentLayers(len(d.Layers), 4)
	net := engine.Mixer{
		Kind: engine.MixDelta, Rope: engine.NoRope, Conv: r.bounded("ssm.conv_kernel", 0, maxTaps), TiledHeads: tiled,
		KeyDim: r.bounded("ssm.state_size", 0, maxHeadDim), KVHeads: r.bounded("ssm.group_count", 0, maxSSMHeads),
		Heads: r.bounded("ssm.time_step_rank", 0, maxSSMHeads),
	}
	inner := r.size("ssm.inner_size", 0)
	net.ValueDim = inner / net.Heads
	switch {
	case r.err != nil:
		return
	case net.Conv < 2:
		r.fail(invalid("metadata %sssm.conv_kernel is %d, want 2 to %d", r.prefix, net.Conv, maxTaps))
	case net.Heads%net.KVHeads != 0:
		r.fail(invalid("metadata %sssm.time_step_rank is %d, want a multiple of %sssm.group_count, which is %d", r.prefix, net.Heads, r.prefix, net.KVHeads))
	case inner%net.Heads != 0 || net.ValueDim > maxHeadDim:
		r.fail(invalid("metadata %sssm.inner_size is %d, want a multiple of %sssm.time_step_rank, which is %d, up to %d times it", r.prefix, inner,
			r.prefix, net.Heads, maxHeadDim))
	}
	if !slices.Contains(recurrent, false) {
		r.fail(unsupported("no layer of attention (metadata %sblock_count is %d, %sfull_attention_interval or %sattention.recurrent_layers names none)",
			r.prefix, len(d.Layers)+r.skipped, r.prefix, r.prefix))
	}
	for i := range d.Layers {
		if recurrent[i] {
			d.Layers[i].Mixer = net
		} else {
			d.Layers[i].Mixer.QKNorm, d.Layers[i].Mixer.OutGate = true, true
		}
	}
}

// nextDecoder is decoder for Qwen 3 Next and 3.5, with a preset for the width of MLPs. Files name
// the norm before the MLP after the attention before it.
func (r *reader) nextDecoder(width int) engine.ModelDesc {
	r.fuse(fusion{"post_attention_norm.weight": {engine.RoleFFNNorm}})
	return r.decoderOf(engine.RopeNeox, width)
}

// recurrentLayers returns which layers carry a state: those that the file lists, or all but every
// period-th one.
func (r *reader) recurrentLayers(n, period int) []bool {
	key := r.key("attention.recurrent_layers")
	period = r.bounded("full_attention_interval", period, max(n, period))
	each := make([]bool, n)
	for i := range each {
		each[i] = (i+1)%period != 0
	}
	v, ok := r.meta.Value(key)
	if !ok || r.err != nil {
		return each
	}
	list, _, err := r.meta.Bools(key)
	switch {
	case v.Type != gguf.Array:
		r.fail(invalid("metadata %s is %v, want a list", key, v.Type))
	case err != nil:
		r.fail(err)
	case len(list) != n+r.skipped:
		r.fail(invalid("metadata %s has %d values, want one for each of %d layers", key, len(list), n+r.skipped))
	default:
		each = list[:n]
	}
	return each
}

// qwen3next is Qwen 3 Next: gated delta nets, and experts with a shared one in every layer. One
// tensor has beta and alpha of a key head one after another.
func qwen3next(r *reader) engine.ModelDesc {
	r.fuse(fusion{"ssm_ba.weight": {engine.RoleDeltaBeta, engine.RoleDeltaAlpha}})
	if r.hasTensor("blk.0.ssm_in.weight") {
		r.fail(unsupported("tensor blk.0.ssm_in.weight, which holds queries, keys, values and gates by head, as in files of before 2026: convert the model again"))
	}
	d := r.nextDecoder(r.expertWidth(0))
	r.deltaNet(&d, false)
	r.nextExperts(&d)
	return d
}

// qwen35 is the dense Qwen 3.5 and 3.6. Its rotation has sections for positions in images, which in
// a text are all the same. A file may have layers that predict further tokens, which are skipped.
func qwen35(r *reader) engine.ModelDesc { return r.next35(0) }

func (r *reader) next35(width int) engine.ModelDesc {
	d := r.nextDecoder(width)
	r.skipPredictors(&d)
	r.deltaNet(&d, true)
	r.textSections(&d)
	return d
}

// qwen35moe is Qwen 3.5 and 3.6 with experts. A file may lack the width of a dense MLP, which no
// layer has.
func qwen35moe(r *reader) engine.ModelDesc {
	d := r.next35(r.expertWidth(0))
	r.nextExperts(&d)
	return d
}

// nextExperts reads the experts of Qwen 3 Next.
func (r *reader) nextExperts(d *engine.ModelDesc) {
	preset := maxExpertWidth
	if len(d.Layers) > 0 {
		preset = d.Layers[0].MLP.Width
	}
	shared := r.bounded("expert_shared_feed_forward_length", preset, maxExpertWidth)
	r.experts(d, mixture{Experts: engine.Experts{Renorm: true, SharedGate: true, SharedWidth: shared}})
}

// textSections reads how many pairs of dims rotate by each of four positions. Together they are all
// pairs that rotate.
func (r *reader) textSections(d *engine.ModelDesc) {
	key := r.key("rope.dimension_sections")
	sections, ok, err := r.meta.Ints(key)
	sum := int64(0)
	for _, n := range sections {
		sum += n
	}
	switch {
	case r.err != nil:
	case err != nil:
		r.err = err
	case !ok:
		r.fail(invalid("metadata %s is missing", key))
	case slices.ContainsFunc(sections, func(n int64) bool { return n < 0 || n > maxHeadDim }) || sum != int64(d.Ropes[0].Dims/2):
		r.fail(invalid("metadata %s is %v, want numbers whose sum is %d, half of %srope.dimension_count", key, sections, d.Ropes[0].Dims/2, r.prefix))
	}
}
