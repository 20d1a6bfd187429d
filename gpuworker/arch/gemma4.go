package arch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
)

// gemma4 is the dense Gemma 4, E2B and E4B, and the 26B, which has experts. It adds to Gemma 3:
// heads are narrower in the layers with a window; the other layers rotate a part of each head,
// by divisors of which most are infinite in effect, and may lack V, which then is K. Scores are not
// scaled, V has a norm without weights, and a number multiplies the residual stream after each
// layer. In E2B and E4B each layer has an input of each token, and the last layers read keys and
// values of layers below. In the 26B each layer has experts and a dense MLP: router, experts
// and MLP read the residual stream by norms of their own.
func gemma4(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	d.EmbeddingScale = root(d.Hidden)
	d.LogitCap = r.softCap("final_logit_softcapping", 0)
	local := r.windowed(&d, 0, 6)
	width := r.size("attention.key_length_swa", 0)
	if width > maxHeadDim {
		r.fail(invalid("metadata %sattention.key_length_swa is %d, want at most %d", r.prefix, width, maxHeadDim))
	}
	if v := r.size("attention.value_length_swa", width); v != width {
		r.fail(unsupported("metadata %sattention.key_length_swa is %d and %sattention.value_length_swa %d, which must be equal", r.prefix, width, r.prefix, v))
	}
	d.Ropes = append(d.Ropes, engine.Rope{
		Dims: r.size("rope.dimension_count_swa", width), Style: engine.RopeNeox, Base: r.within("rope.freq_base_swa", 10000, 1, maxRopeBase), Scale: 1,
	})
	if dims := d.Ropes[1].Dims; dims%2 != 0 || dims > width {
		r.fail(invalid("metadata %srope.dimension_count_swa is %d, want an even number up to the head's %d", r.prefix, dims, width))
	}
	if !r.hasTensor(RopeFactorsName) {
		r.fail(invalid("tensor %s is missing: it says which part of a head layers without a window rotate", RopeFactorsName))
	}
	for i := range d.Layers {
		l := &d.Layers[i]
		m := &l.Mixer
		m.QKNorm, m.VNorm, m.EndNorm = true, true, true
		if m.Scale == 0 {
			m.Scale = 1
		}
		m.ValueIsKey = !r.hasTensor(fmt.Sprintf("blk.%d.attn_v.weight", i))
		if local != nil && local[i] {
			m.Rope, m.KeyDim, m.ValueDim = 1, width, width
		}
		l.MLP.Activation, l.MLP.EndNorm = engine.GELUTanh, true
		l.OutputScale = r.hasTensor(fmt.Sprintf("blk.%d.layer_output_scale.weight", i))
	}
	d.LayerInputWidth = r.count("embedding_length_per_layer_input", maxInputWidth)
	r.shareKeys(&d, local)
	if r.mixed() {
		r.fuse(fusion{
			"ffn_gate.weight": {engine.RoleSharedGate}, "ffn_up.weight": {engine.RoleSharedUp}, "ffn_down.weight": {engine.RoleSharedDown},
		})
		r.experts(&d, mixture{Experts: engine.Experts{Renorm: true, Scales: true, Apart: true}, keepDense: true})
	}
	return d
}

// shareKeys gives the last layers of a file the keys and values of the last layer before them that
// has the same positions in view, as transformers does. Files may have tensors for keys and values
// of their own, which nothing reads.
func (r *reader) shareKeys(d *engine.ModelDesc, local []bool) {
	shared := r.count("attention.shared_kv_layers", max(0, len(d.Layers)-1))
	first := len(d.Layers) - shared
	isLocal := func(layer int) bool { return local != nil && local[layer] }
	for i := first; i < len(d.Layers); i++ {
		from := first - 1
		for from >= 0 && isLocal(from) != isLocal(i) {
			from--
		}
		if from < 0 {
			r.fail(invalid("metadata %sattention.shared_kv_layers is %d: no layer before layer %d has keys for layer %d", r.prefix, shared, first, i))
			return
		}
		m := &d.Layers[i].Mixer
		m.KVLayer, m.ValueIsKey, m.VNorm = i-from, false, false
		for _, role := range []engine.Role{engine.RoleK, engine.RoleV, engine.RoleKNorm} {
			r.ignore(TensorName(role, i))
		}
	}
}
