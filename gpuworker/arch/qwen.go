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

// qwen2moe is Qwen 1.5 MoE and Qwen 2 57B: the attention of Qwen 2, and a shared expert with a gate
// of its own. The first files have neither the width of an expert nor that of the shared one.
func qwen2moe(r *reader) engine.ModelDesc {
	d := qwen2(r)
	m := mixture{Experts: engine.Experts{SharedGate: true, SharedWidth: r.count("expert_shared_feed_forward_length", maxExpertWidth)}}
	if used := r.bounded("expert_used_count", 0, maxExperts); r.err == nil {
		dense := d.Layers[0].MLP.Width
		m.width = max(1, dense/used)
		if m.SharedWidth == 0 {
			m.SharedWidth = dense
		}
	}
	r.experts(&d, m)
	return d
}

// qwen3moe is Qwen 3 with experts: the attention of Qwen 3.
func qwen3moe(r *reader) engine.ModelDesc {
	d := qwen3(r)
	r.experts(&d, mixture{Experts: engine.Experts{Renorm: true}})
	return d
}
