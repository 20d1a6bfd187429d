package arch

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
)

const (
	// maxExperts and maxExpertWidth are far above published models, which have 8 to 512 experts of
	// 512 to 16384.
	maxExperts     = 4096
	maxExpertWidth = 1 << 22
)

// mixture is the default of a family; keys of a file change it.
type mixture struct {
	engine.Experts
	dense     int  // layers before the first with experts
	width     int  // of an expert; 0 = that of the layer's dense MLP
	keepDense bool // the dense MLPs stay, as shared experts
}

// mixed reports whether the file has experts, in a family that also has files without.
func (r *reader) mixed() bool {
	n, _, err := r.meta.Uint(r.prefix + "expert_count")
	return err == nil && n > 0
}

// experts replaces the MLPs of all layers but the dense ones at the beginning by mixtures. It reads
// the keys that all families have in common; a family reads those of groups, of shared experts and
// of dense layers itself. A file may have one stack for gate and up.
func (r *reader) experts(d *engine.ModelDesc, preset mixture) {
	e := preset.Experts
	e.Count = r.bounded("expert_count", 0, maxExperts)
	if !r.has("expert_used_count") {
		r.fail(invalid("metadata %sexpert_count is %d and %sexpert_used_count is missing", r.prefix, e.Count, r.prefix))
	}
	e.Used = r.bounded("expert_used_count", 0, e.Count)
	e.Gating = r.gating(e.Gating)
	e.Renorm = r.flag("expert_weights_norm", e.Renorm)
	e.WeightScale = r.weightScale()
	width := r.expertWidth(preset.width)
	if r.err != nil {
		return
	}
	if e.Groups > 0 && (e.Count%e.Groups != 0 || e.Count == e.Groups) {
		r.fail(invalid("metadata %sexpert_group_count is %d, want a number that divides the %d of %sexpert_count into groups of two or more",
			r.prefix, e.Groups, e.Count, r.prefix))
		return
	}
	if e.Groups > 0 && e.Used > e.Count/e.Groups*e.GroupsUsed {
		r.fail(invalid("metadata %sexpert_used_count is %d, want at most the %d of %sexpert_count in the %d groups of %sexpert_group_used_count",
			r.prefix, e.Used, e.Count/e.Groups*e.GroupsUsed, r.prefix, e.GroupsUsed, r.prefix))
		return
	}
	if r.hasTensor(fmt.Sprintf("blk.%d.ffn_gate_up_exps.weight", preset.dense)) {
		r.fuse(fusedExperts)
	}
	for i := preset.dense; i < len(d.Layers); i++ {
		m := &d.Layers[i].MLP
		if preset.keepDense {
			e.SharedWidth = m.Width
		}
		m.Kind, m.Experts = engine.MLPExperts, e
		if width != 0 {
			m.Width = width
		}
		if most := max(m.Width, e.SharedWidth); most > maxExpertWidth {
			r.fail(invalid("experts are %d wide, want at most %d", most, maxExpertWidth))
		}
	}
}

func (r *reader) expertWidth(preset int) int {
	if width := r.count("expert_feed_forward_length", maxExpertWidth); width != 0 {
		return width
	}
	return preset
}

// gating reads the function that makes weights from the router's logits. 0 and absence mean the
// preset.
func (r *reader) gating(preset engine.Gating) engine.Gating {
	key := r.key("expert_gating_func")
	switch v, _, err := r.meta.Uint(key); {
	case err != nil:
		r.fail(err)
	case v == 1:
		return engine.GateSoftmax
	case v == 2:
		return engine.GateSigmoid
	case v != 0:
		r.fail(unsupported("weights of experts of another kind than softmax and sigmoid (metadata %s is %d)", key, v))
	}
	return preset
}

// flag returns a bool, preset if the key is absent.
func (r *reader) flag(key string, preset bool) bool {
	v, ok, err := r.meta.Bool(r.key(key))
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return preset
	}
	return v
}

// weightScale reads the factor of the weights of experts. 0 and absence mean none.
func (r *reader) weightScale() float32 {
	const key = "expert_weights_scale"
	if v, ok, err := r.meta.Float(r.key(key)); err == nil && (!ok || v == 0) {
		return 0
	}
	return r.within(key, 0, 1/maxScale, maxScale)
}

// groups reads groups of experts, the best of which take part. One group means no groups.
func (r *reader) groups() (groups, used int) {
	groups = r.count("expert_group_count", maxExperts)
	used = r.count("expert_group_used_count", maxExperts)
	if groups <= 1 && used <= 1 {
		return 0, 0
	}
	if used < 1 || used > groups {
		r.fail(invalid("metadata %sexpert_group_used_count is %d, want 1 to the %d of %sexpert_group_count", r.prefix, used, groups, r.prefix))
	}
	return groups, used
}

// shared reads the width of the shared expert, 0 if there is none. A file has the width, or how
// many experts wide it is, or both.
func (r *reader) shared() int {
	count, width := r.count("expert_shared_count", maxExperts), r.count("expert_shared_feed_forward_length", maxExpertWidth)
	if count == 0 {
		return width
	}
	product := count * r.size("expert_feed_forward_length", 0)
	if product > maxExpertWidth {
		r.fail(invalid("metadata %sexpert_shared_count is %d: a shared expert of %d, want at most %d", r.prefix, count, product, maxExpertWidth))
	}
	if width != 0 && width != product {
		r.fail(invalid("metadata %sexpert_shared_feed_forward_length is %d, want %d: %sexpert_shared_count times %sexpert_feed_forward_length",
			r.prefix, width, product, r.prefix, r.prefix))
	}
	return product
}

// leadingDense reads how many layers at the beginning have no experts.
func (r *reader) leadingDense(d *engine.ModelDesc) int {
	return r.count("leading_dense_block_count", max(0, len(d.Layers)-1))
}

// hasChoiceBias reports whether the first layer with experts has a bias of the choice.
func (r *reader) hasChoiceBias(layer int) bool {
	return r.hasTensor(TensorName(engine.RoleChoiceBias, layer))
}

// skipPredictors removes the last layers, which predict further tokens. A file counts them as
// layers.
func (r *reader) skipPredictors(d *engine.ModelDesc) {
	r.skipped = r.count("nextn_predict_layers", max(0, len(d.Layers)-1))
	d.Layers = d.Layers[:len(d.Layers)-r.skipped]
}

// refuseSingleExpert returns an error for a tensor of one expert.
func refuseSingleExpert(name, suffix string) error {
	part, rest, _ := strings.Cut(suffix, ".")
	if number := strings.TrimSuffix(rest, ".weight"); number == "" || strings.Trim(number, "0123456789") != "" {
		return nil
	}
	switch part {
	case "ffn_gate", "ffn_up", "ffn_down":
		return unsupported("tensor %s holds one expert, as in files of before April 2024: convert the model again, "+
			"so that %s_exps.weight holds all", name, part)
	}
	return nil
}
