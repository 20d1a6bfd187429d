package arch

import "github.com/millrace/millrace/gpuworker/engine"

// dots1 is dots.llm1. It has norms of heads. After the dense layers come mixtures with sigmoid gating,
// a choice bias and a shared expert.
func dots1(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKNorm = true
	}
	dense := r.leadingDense(&d)
	e := engine.Experts{Gating: engine.GateSigmoid, Renorm: true, ChoiceBias: r.hasChoiceBias(dense), SharedWidth: r.shared()}
	r.experts(&d, mixture{Experts: e, dense: dense})
	return d
}
