package arch

import "github.com/millrace/millrace/gpuworker/engine"

// seedOSS is Seed-OSS: a Llama with biases of Q, K and V, whose files name the norm before the MLP
// after the attention before it.
func seedOSS(r *reader) engine.ModelDesc {
	r.fuse(fusion{"post_attention_norm.weight": {engine.RoleFFNNorm}})
	return r.decoder(engine.RopeNeox)
}
