package arch

import "github.com/millrace/millrace/gpuworker/engine"

// llama is Llama 1 to 3 and what shares its layout, such as Mistral and Yi. Files have the rows of
// Q and K permuted so that the dims that rotate together are adjacent. Mistral 7B v0.1 has a window
// in all layers, if its file has the key. Mixtral has experts.
func llama(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	r.windowed(&d, 0, 0)
	if r.mixed() {
		r.experts(&d, mixture{Experts: engine.Experts{Renorm: true}})
	}
	return d
}
