package arch

import "github.com/millrace/millrace/gpuworker/engine"

// exaone4 is EXAONE 4: branches with a norm after and none before, and norms of heads. The 32B
// has a window in three of four layers, and only those encode positions.
func exaone4(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		l := &d.Layers[i]
		l.Mixer.NoNorm, l.Mixer.EndNorm, l.Mixer.QKNorm = true, true, true
		l.MLP.NoNorm, l.MLP.EndNorm = true, true
	}
	for i, local := range r.windowed(&d, 0, 4) {
		if !local {
			d.Layers[i].Mixer.Rope = engine.NoRope
		}
	}
	return d
}
