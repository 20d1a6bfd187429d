package arch

import "github.com/millrace/millrace/gpuworker/engine"

// glm4 is GLM-4-0414 and models of its network, such as GLM-Z1: norms before and after every
// branch, half of each head rotated, and one tensor for gate and up.
func glm4(r *reader) engine.ModelDesc {
	r.fuse(fusedGateUp)
	d := r.decoder(engine.RopeNorm)
	for i := range d.Layers {
		d.Layers[i].Mixer.EndNorm, d.Layers[i].MLP.EndNorm = true, true
	}
	return d
}
