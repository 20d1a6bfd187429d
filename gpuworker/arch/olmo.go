package arch

import "github.com/millrace/millrace/gpuworker/engine"

// olmo2 is OLMo 2 and 3: branches with a norm after and none before, and norms over the
// whole rows of Q and K. OLMo 3 has a window in three of four layers, whose rotation is not scaled.
func olmo2(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		l := &d.Layers[i]
		l.Mixer.NoNorm, l.Mixer.EndNorm, l.Mixer.QKRowNorm = true, true, true
		l.MLP.NoNorm, l.MLP.EndNorm = true, true
	}
	r.localRope(&d, r.windowed(&d, 0, 4), d.Ropes[0].Base)
	return d
}

// olmoe is OLMoE: a Llama of experts with norms over the whole rows of Q and K.
func olmoe(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKRowNorm = true
	}
	r.experts(&d, mixture{})
	return d
}
