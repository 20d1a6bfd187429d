package arch

import "github.com/millrace/millrace/gpuworker/engine"

// ernie4_5moe is ERNIE 4.5 with experts: a Llama whose experts are chosen with a bias, beside a
// shared one, after dense layers.
func ernie4_5moe(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	dense := r.leadingDense(&d)
	e := engine.Experts{Renorm: true, ChoiceBias: r.hasChoiceBias(dense), SharedWidth: r.shared()}
	r.experts(&d, mixture{Experts: e, dense: dense})
	return d
}
