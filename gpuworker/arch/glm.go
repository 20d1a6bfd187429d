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

// glm4moe is GLM-4.5 to 4.7. After the dense layers come mixtures with sigmoid gating, a choice bias
// and a shared expert. The larger models have norms of heads. Files name the norm before the MLP after the
// attention before it, and have layers that predict further tokens, which are skipped.
func glm4moe(r *reader) engine.ModelDesc {
	r.fuse(fusion{"post_attention_norm.weight": {engine.RoleFFNNorm}})
	d := r.decoder(engine.RopeNeox)
	r.skipPredictors(&d)
	norms := r.hasTensor(TensorName(engine.RoleQNorm, 0))
	for i := range d.Layers {
		d.Layers[i].Mixer.QKNorm = norms
	}
	e := engine.Experts{Gating: engine.GateSigmoid, ChoiceBias: true, Renorm: true, SharedWidth: r.shared()}
	e.Groups, e.GroupsUsed = r.groups()
	e.GroupBestTwo = e.Groups > 0
	r.experts(&d, mixture{Experts: e, dense: r.leadingDense(&d)})
	return d
}
