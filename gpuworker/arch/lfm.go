package arch

import "github.com/millrace/millrace/gpuworker/engine"

// lfm2 is LFM2 and 2.5: short convolutions, and attention with norms of heads in the layers that
// have key-value heads. The norm of the output is named after the embedding.
func lfm2(r *reader) engine.ModelDesc {
	r.fuse(fusion{
		"shortconv.in_proj.weight": {engine.RoleMixIn}, "shortconv.conv.weight": {engine.RoleMixConv},
		"shortconv.out_proj.weight": {engine.RoleMixOut}, "token_embd_norm.weight": {engine.RoleOutputNorm},
	})
	r.headless = true
	d := r.decoder(engine.RopeNeox)
	conv := engine.Mixer{Kind: engine.MixConv, Rope: engine.NoRope, Conv: r.bounded("shortconv.l_cache", 0, maxTaps)}
	if conv.Conv < 2 {
		r.fail(invalid("metadata %sshortconv.l_cache is %d, want 2 to %d", r.prefix, conv.Conv, maxTaps))
	}
	attends := false
	for i := range d.Layers {
		m := &d.Layers[i].Mixer
		if m.KVHeads == 0 {
			*m = conv
			continue
		}
		m.QKNorm, attends = true, true
	}
	if r.err == nil && !attends {
		r.fail(unsupported("no layer of attention (metadata %sattention.head_count_kv has none above 0)", r.prefix))
	}
	return d
}

// lfm2moe is LFM2 with experts after its first layers, whose choice has a bias.
func lfm2moe(r *reader) engine.ModelDesc {
	d := lfm2(r)
	dense := r.leadingDense(&d)
	r.experts(&d, mixture{
		Experts: engine.Experts{Gating: engine.GateSigmoid, Renorm: true, ChoiceBias: r.hasChoiceBias(dense)}, dense: dense,
	})
	return d
}
