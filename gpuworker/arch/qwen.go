package arch

import "github.com/millrace/millrace/gpuworker/engine"

// qwen2 is Qwen 1.5 to 2.5: Q, K and V have biases.
func qwen2(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKVBias = true
	}
	return d
}

// qwen3 is Qwen 3: each head of Q and of K has a norm.
func qwen3(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.QKNorm = true
	}
	return d
}
