package arch

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// maxCap bounds soft caps. Those of published models are 15 to 50.
const maxCap = 1e6

// gemma2 is Gemma 2: end norms, caps of scores and of logits, and a window in every second layer,
// the first of them layer 0.
func gemma2(r *reader) engine.ModelDesc {
	d := r.gemma(46)
	d.LogitCap = r.softCap("final_logit_softcapping", 30)
	scores := r.softCap("attn_logit_softcapping", 50)
	for i := range d.Layers {
		d.Layers[i].Mixer.ScoreCap = scores
	}
	r.windowed(&d, 4096, 2)
	return d
}

// gemma3 is Gemma 3, and models of its network such as MedGemma: norms of heads, and a window in
// five of six layers, whose rotation is neither stretched nor has the base of the others.
func gemma3(r *reader) engine.ModelDesc {
	d := r.gemma(62)
	d.LogitCap = r.softCap("final_logit_softcapping", 0)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKNorm = true
	}
	r.localRope(&d, r.windowed(&d, 0, 6), 10000)
	return d
}

// gemmaEmbedding is EmbeddingGemma: the network of Gemma 3 whose layers see later positions. A layer
// with a window sees the positions that are at most half of the file's window away, on both sides.
// Dense layers may follow the pooling.
func gemmaEmbedding(r *reader) engine.ModelDesc {
	d := r.gemma(0)
	window := r.window(0)
	if window > 0 {
		window = window/2 + 1 // with the position itself
	}
	r.localRope(&d, r.windowedBy(&d, window, 6), 10000)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKNorm, d.Layers[i].Mixer.Bidirectional = true, true
	}
	if v, ok, err := number(r.meta, r.key("attention.causal")); err != nil || ok && v != 0 {
		r.fail(unsupported("attention that is causal (metadata %sattention.causal)", r.prefix))
	}
	r.denseLayers(d.Hidden)
	return d
}

// gemma reads what the versions of Gemma have in common. Files store norm weights with the one that
// the network adds. No key has the scale of scores: it is that of the head's width, but in the 27B
// models, which are known by their layers, that of hidden/heads.
func (r *reader) gemma(layersOf27B int) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	d.EmbeddingScale = root(d.Hidden)
	for i := range d.Layers {
		l := &d.Layers[i]
		l.Mixer.EndNorm, l.MLP.EndNorm, l.MLP.Activation = true, true, engine.GELUTanh
		if len(d.Layers) == layersOf27B && l.Mixer.Scale == 0 {
			l.Mixer.Scale = 1 / root(max(1, d.Hidden/l.Mixer.Heads))
		}
	}
	return d
}

// softCap reads a soft cap. 0 = none.
func (r *reader) softCap(key string, preset float32) float32 {
	if preset == 0 && !r.has(key) {
		r.key(key)
		return 0
	}
	return r.within(key, preset, 1/maxCap, maxCap)
}

// root returns the square root of a size in float32.
func root(size int) float32 { return float32(math.Sqrt(float64(size))) }
