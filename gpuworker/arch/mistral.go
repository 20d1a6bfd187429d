package arch

import "github.com/millrace/millrace/gpuworker/engine"

// mistral3 is Mistral Small 3, Devstral and Ministral 3: a Llama, whose newer versions have YaRN and
// an attention temperature that rises with each multiple of the original context.
func mistral3(r *reader) engine.ModelDesc {
	d := r.decoder(engine.RopeNorm)
	const key = "attention.temperature_scale"
	v, ok, err := r.meta.Float(r.key(key))
	if err != nil {
		r.fail(err)
	}
	if !ok || v == 0 {
		return d
	}
	scale := r.within(key, 0, 1/maxAttnScale, maxAttnScale)
	length := r.bounded("rope.scaling.original_context_length", d.Context, engine.MaxContext)
	for i := range d.Layers {
		d.Layers[i].Mixer.TemperatureScale, d.Layers[i].Mixer.TemperatureLength = scale, length
	}
	return d
}
