package arch

import "github.com/millrace/millrace/gpuworker/engine"

// minimaxM2 is MiniMax-M2: norms over the whole rows of Q and K, half of each head rotated, and
// experts by sigmoids, chosen with a bias.
func minimaxM2(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKRowNorm = true
	}
	r.experts(&d, mixture{Experts: engine.Experts{Gating: engine.GateSigmoid, ChoiceBias: true, Renorm: true}})
	return d
}
