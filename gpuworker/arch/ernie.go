package arch

import "github.com/millrace/millrace/gpuworker/engine"

// ernie4_5moe is ERNIE 4.5 with experts. It is a Llama with dense layers at first, and then mixtures
// with a choice bias and a shared expert.
func ernie4_5moe(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	dense := r.leadingDense(&d)
	e := engine.Experts{Renorm: true, ChoiceBias: r.hasChoiceBias(dense), SharedWidth: r.shared()}
	r.experts(&d, mixture{Experts: e, dense: dense})
	return d
}
