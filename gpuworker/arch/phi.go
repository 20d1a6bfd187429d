package arch

import "github.com/millrace/millrace/gpuworker/engine"

// phi3 is Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: a Llama whose files have one tensor for Q, K and V
// and one for gate and up, with LongRoPE in the versions of 128k and rotated parts of heads in
// Phi-4-mini. All layers have the window of the file, as in transformers; llama.cpp ignores it.
func phi3(r *reader) engine.ModelDesc {
	r.fuse(fusedQKV, fusedGateUp)
	d := r.decoder(engine.RopeNeox)
	r.windowed(&d, 0, 0)
	return d
}
