package arch

import "github.com/millrace/millrace/gpuworker/engine"

// maxScale bounds factors. Those of published models are 0.2 to 16.
const maxScale = 1e4

// granite is the dense Granite 3 and 4: a Llama with scales of the embedding, of scores, of every
// branch and of logits, which are divided by theirs.
func granite(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	d.EmbeddingScale = r.within("embedding_scale", 1, 1/maxScale, maxScale)
	d.ResidualScale = r.within("residual_scale", 1, 1/maxScale, maxScale)
	d.LogitScale = 1 / r.within("logit_scale", 0, 1/maxScale, maxScale)
	// Files of Granite without positions have this key, whose usual meaning changes nothing.
	if rotates, ok, err := r.meta.Bool(r.key("rope.scaling.finetuned")); err != nil {
		r.fail(err)
	} else if ok && !rotates {
		for i := range d.Layers {
			d.Layers[i].Mixer.Rope = engine.NoRope
		}
		d.Ropes = nil
	}
	return d
}

// granitemoe is Granite 3 with experts, which may have a shared one.
func granitemoe(r *reader) engine.ModelDesc {
	d := granite(r)
	r.experts(&d, mixture{Experts: engine.Experts{Renorm: true, SharedWidth: r.count("expert_shared_feed_forward_length", maxExpertWidth)}})
	return d
}
