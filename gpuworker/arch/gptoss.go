package arch

import "github.com/millrace/millrace/gpuworker/engine"

// gptOSS is gpt-oss: attention with biases, a sink for each head and a window in every second layer,
// the first of them layer 0, and experts with biases and a clamped gate. Their weights are the
// softmax of the chosen logits, which is that of all divided by the sum of the chosen. Files name
// the norm before the MLP after the attention before it.
func gptOSS(r *reader) engine.ModelDesc {
	r.fuse(fusion{"post_attention_norm.weight": {engine.RoleFFNNorm}})
	r.sharpYarn = true
	d := r.decoder(engine.RopeNeox)
	for i := range d.Layers {
		d.Layers[i].Mixer.Sinks, d.Layers[i].MLP.Activation = true, engine.ClampedSwish
	}
	r.windowed(&d, 128, 2)
	r.experts(&d, mixture{Experts: engine.Experts{Renorm: true, RouterBias: true, Bias: true}})
	return d
}
