package arch

import "github.com/millrace/millrace/gpuworker/engine"

// smollm3 is SmolLM 3: a Llama whose every fourth layer does not encode positions. No key says which.
func smollm3(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	for i := range d.Layers {
		if i%4 == 3 {
			d.Layers[i].Mixer.Rope = engine.NoRope
		}
	}
	return d
}
