package arch_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
)

// mutations are the mistakes that a family could make: each changes a description, whose ropes and
// layers it owns, or exchanges tensors. It reports whether the model has what it changes.
var mutations = map[string]func(w *reference.Weights) bool{
	"a window of one position more":  mixers(func(m *engine.Mixer) bool { m.Window++; return m.Window > 1 }),
	"a window of one position less":  mixers(func(m *engine.Mixer) bool { m.Window--; return m.Window > 0 }),
	"no window":                      mixers(func(m *engine.Mixer) bool { was := m.Window; m.Window = 0; return was > 0 }),
	"another cap of scores":          mixers(func(m *engine.Mixer) bool { m.ScoreCap *= 1.01; return m.ScoreCap > 0 }),
	"no norms of heads":              mixers(func(m *engine.Mixer) bool { was := m.QKNorm; m.QKNorm = false; return was }),
	"no norms of rows of Q and K":    mixers(func(m *engine.Mixer) bool { was := m.QKRowNorm; m.QKRowNorm = false; return was }),
	"no norm of values":              mixers(func(m *engine.Mixer) bool { was := m.VNorm; m.VNorm = false; return was }),
	"no norm after attention":        mixers(func(m *engine.Mixer) bool { was := m.EndNorm; m.EndNorm = false; return was }),
	"no norm before attention":       mixers(func(m *engine.Mixer) bool { was := m.NoNorm; m.NoNorm = true; return !was }),
	"no later positions":             mixers(func(m *engine.Mixer) bool { was := m.Bidirectional; m.Bidirectional = false; return was }),
	"no biases":                      mixers(func(m *engine.Mixer) bool { was := m.QKVBias; m.QKVBias = false; return was }),
	"no biases of O":                 mixers(func(m *engine.Mixer) bool { was := m.OutBias; m.OutBias = false; return was }),
	"no sinks":                       mixers(func(m *engine.Mixer) bool { was := m.Sinks; m.Sinks = false; return was }),
	"positions in every layer":       mixers(func(m *engine.Mixer) bool { was := m.Rope; m.Rope = 0; return was != 0 }),
	"no positions":                   mixers(func(m *engine.Mixer) bool { was := m.Rope; m.Rope = engine.NoRope; return was >= 0 }),
	"another scale of scores":        mixers(scaleScores),
	"no norm after the MLP":          mlps(func(m *engine.MLP) bool { was := m.EndNorm; m.EndNorm = false; return was }),
	"no norm before the MLP":         mlps(func(m *engine.MLP) bool { was := m.NoNorm; m.NoNorm = true; return !was }),
	"another activation":             mlps(func(m *engine.MLP) bool { m.Activation = (m.Activation + 1) % 2; return true }),
	"another base of the first rope": ropes(0, func(r *engine.Rope) bool { r.Base *= 1.1; return true }),
	"another base of the other rope": ropes(1, func(r *engine.Rope) bool { r.Base *= 1.1; return true }),
	"another scale of positions":     ropes(0, func(r *engine.Rope) bool { r.Scale *= 1.01; return true }),
	"scaled positions in windows":    ropes(1, func(r *engine.Rope) bool { r.Scale *= 1.01; return true }),
	"other pairs of dims":            ropes(0, func(r *engine.Rope) bool { r.Style = engine.RopeNeox - r.Style; return true }),
	"other dims": whole(func(d *engine.ModelDesc) bool {
		r := &d.Ropes[0]
		r.Dims -= 2
		r.Divisors = r.Divisors[:len(r.Divisors)*r.Dims/(r.Dims+2)]
		return d.Layers[0].Mixer.Kind != engine.MixLatent // whose tensors have other dims then
	}),
	"another magnitude": ropes(0, func(r *engine.Rope) bool { r.Magnitude *= 1.01; return r.Magnitude > 0 }),
	"no attention temperature": mixers(func(m *engine.Mixer) bool {
		was := m.TemperatureLength
		m.TemperatureScale, m.TemperatureLength = 0, 0
		return was > 0
	}),
	"a temperature one position late": mixers(func(m *engine.Mixer) bool { m.TemperatureLength++; return m.TemperatureLength > 1 }),
	"another divisor": ropes(0, func(r *engine.Rope) bool {
		if r.Divisors != nil {
			r.Divisors[1] *= 1.01
		}
		return r.Divisors != nil
	}),
	"another scale of embeddings": whole(func(d *engine.ModelDesc) bool { d.EmbeddingScale *= 1.01; return d.EmbeddingScale > 0 }),
	"another scale of branches":   whole(func(d *engine.ModelDesc) bool { d.ResidualScale *= 1.01; return d.ResidualScale > 0 }),
	"another scale of logits":     whole(func(d *engine.ModelDesc) bool { d.LogitScale *= 1.01; return d.LogitScale > 0 }),
	"another cap of logits":       whole(func(d *engine.ModelDesc) bool { d.LogitCap *= 1.01; return d.LogitCap > 0 }),
	"another epsilon":             whole(func(d *engine.ModelDesc) bool { d.NormEps *= 100; return true }),
	"no scale of layers": whole(func(d *engine.ModelDesc) bool {
		had := false
		for i := range d.Layers {
			had, d.Layers[i].OutputScale = had || d.Layers[i].OutputScale, false
		}
		return had
	}),
	"the pattern of windows one layer later": whole(func(d *engine.ModelDesc) bool {
		was := windows(d)
		for i := range d.Layers {
			d.Layers[i].Mixer.Window = was[(i+1)%len(was)]
		}
		return slices.Min(was) != slices.Max(was)
	}),
	"no inputs of layers": whole(func(d *engine.ModelDesc) bool { was := d.LayerInputWidth; d.LayerInputWidth = 0; return was > 0 }),
	"keys of another layer": whole(func(d *engine.ModelDesc) bool {
		changed := false
		for i := range d.Layers {
			m := &d.Layers[i].Mixer
			if of := i - m.KVLayer - 1; m.KVLayer > 0 && of >= 0 && d.Layers[of].Mixer.KVLayer == 0 && d.Layers[of].Mixer.KeyDim == m.KeyDim {
				m.KVLayer++
				changed = true
			}
		}
		return changed
	}),
	"one expert less":          experts(func(e *engine.Experts) bool { e.Used--; return e.Used > 0 }),
	"weights of another sum":   experts(func(e *engine.Experts) bool { e.Renorm = !e.Renorm; return !e.Apart }), // an end norm undoes a factor
	"weights of another kind":  experts(func(e *engine.Experts) bool { e.Gating = engine.GateSigmoid - e.Gating; return true }),
	"another scale of weights": experts(func(e *engine.Experts) bool { e.WeightScale *= 1.01; return e.WeightScale > 0 }),
	"no bias of the choice": without(engine.RoleChoiceBias, experts(func(e *engine.Experts) bool {
		was := e.ChoiceBias
		e.ChoiceBias = false
		return was
	})),
	"no groups of experts": experts(func(e *engine.Experts) bool {
		was := e.Groups
		e.Groups, e.GroupsUsed, e.GroupBestTwo = 0, 0, false
		return was > 0
	}),
	"one group less":           experts(func(e *engine.Experts) bool { e.GroupsUsed--; return e.GroupsUsed > 0 }),
	"groups by the best alone": experts(func(e *engine.Experts) bool { was := e.GroupBestTwo; e.GroupBestTwo = false; return was }),
	"no shared expert": experts(func(e *engine.Experts) bool {
		was := e.SharedWidth
		e.SharedWidth, e.SharedGate = 0, false
		return was > 0
	}),
	"no gate of the shared":        experts(func(e *engine.Experts) bool { was := e.SharedGate; e.SharedGate = false; return was }),
	"no biases of the router":      experts(func(e *engine.Experts) bool { was := e.RouterBias; e.RouterBias = false; return was }),
	"no biases of experts":         experts(func(e *engine.Experts) bool { was := e.Bias; e.Bias = false; return was }),
	"experts' gate biases for ups": exchanged(engine.RoleExpertGateBias, engine.RoleExpertUpBias),
	"no scales of experts": without(engine.RoleExpertScale, experts(func(e *engine.Experts) bool {
		was := e.Scales
		e.Scales = false
		return was
	})),
	"no norms of the experts' own":          experts(func(e *engine.Experts) bool { was := e.Apart; e.Apart = false; return was }),
	"the MLP's norm for experts'":           exchanged(engine.RoleFFNNorm, engine.RoleExpertNorm),
	"the router's norm for experts'":        exchanged(engine.RoleRouterNorm, engine.RoleExpertNorm),
	"the MLP's end norm for experts'":       exchanged(engine.RoleSharedEndNorm, engine.RoleExpertEndNorm),
	"experts' gate for up":                  exchanged(engine.RoleExpertGate, engine.RoleExpertUp),
	"the shared gate for up":                exchanged(engine.RoleSharedGate, engine.RoleSharedUp),
	"gate for up":                           exchanged(engine.RoleGate, engine.RoleUp),
	"one end norm for another":              exchanged(engine.RoleAttnEndNorm, engine.RoleFFNEndNorm),
	"one norm for another":                  exchanged(engine.RoleAttnNorm, engine.RoleFFNNorm),
	"an end norm before instead":            exchanged(engine.RoleAttnNorm, engine.RoleAttnEndNorm),
	"keys' norm for queries'":               exchanged(engine.RoleQNorm, engine.RoleKNorm),
	"gates of Q for queries":                swapped(engine.RoleQ, func(l *engine.Layer) int { return l.Mixer.KeyDim * gated(l.Mixer.OutGate) }),
	"key heads in another order":            nets(func(m *engine.Mixer) bool { m.TiledHeads = !m.TiledHeads; return m.Heads > m.KVHeads }),
	"another scale of states":               nets(func(m *engine.Mixer) bool { m.Scale = float32(1.01 / math.Sqrt(float64(m.KeyDim))); return true }),
	"taps by age":                           reversed(engine.RoleMixConv),
	"queries for keys":                      swapped(engine.RoleMixIn, func(l *engine.Layer) int { return l.Mixer.KVHeads * l.Mixer.KeyDim }),
	"gates before for behind":               swapped(engine.RoleMixIn, func(l *engine.Layer) int { return 48 * gated(l.Mixer.Kind == engine.MixConv) }),
	"beta for alpha":                        exchanged(engine.RoleDeltaBeta, engine.RoleDeltaAlpha),
	"steps for decays":                      exchanged(engine.RoleDeltaDT, engine.RoleDeltaA),
	"gates of one value head for another's": swapped(engine.RoleMixGate, func(l *engine.Layer) int { return l.Mixer.ValueDim }),
	"a rotated key before its latent":       swapped(engine.RoleKVDown, func(*engine.Layer) int { return 8 }),
	"keys of one head for another's":        swapped(engine.RoleKUp, func(l *engine.Layer) int { return l.Mixer.Latent }),
	"values of one head for another's":      swapped(engine.RoleVUp, func(l *engine.Layer) int { return l.Mixer.ValueDim }),
	"rotated queries before the others":     swapped(engine.RoleQUp, func(l *engine.Layer) int { return l.Mixer.KeyDim / 2 }),
}

func gated(on bool) int {
	if on {
		return 1
	}
	return 0
}

func scaleScores(m *engine.Mixer) bool {
	if m.Scale == 0 {
		m.Scale = float32(1 / math.Sqrt(float64(m.KeyDim)))
	}
	m.Scale *= 1.01
	return true
}

func whole(change func(*engine.ModelDesc) bool) func(*reference.Weights) bool {
	return func(w *reference.Weights) bool { return change(&w.Desc) }
}

// mixers changes the attention of layers that have what the change concerns, and leaves the others.
func mixers(change func(*engine.Mixer) bool) func(*reference.Weights) bool {
	return layers(func(l *engine.Layer) bool { return l.Mixer.Conv == 0 && change(&l.Mixer) })
}

func nets(change func(*engine.Mixer) bool) func(*reference.Weights) bool {
	return layers(func(l *engine.Layer) bool { return l.Mixer.Kind == engine.MixDelta && change(&l.Mixer) })
}

func mlps(change func(*engine.MLP) bool) func(*reference.Weights) bool {
	return layers(func(l *engine.Layer) bool { return change(&l.MLP) })
}

func experts(change func(*engine.Experts) bool) func(*reference.Weights) bool {
	return mlps(func(m *engine.MLP) bool { return m.Kind == engine.MLPExperts && change(&m.Experts) })
}

func layers(change func(*engine.Layer) bool) func(*reference.Weights) bool {
	return whole(func(d *engine.ModelDesc) bool {
		changed := false
		for i, was := range d.Layers {
			if change(&d.Layers[i]) {
				changed = true
			} else {
				d.Layers[i] = was
			}
		}
		return changed
	})
}

func ropes(i int, change func(*engine.Rope) bool) func(*reference.Weights) bool {
	return whole(func(d *engine.ModelDesc) bool { return i < len(d.Ropes) && change(&d.Ropes[i]) })
}

// without removes the tensors of a role too, because the reference computes with those that it has.
func without(role engine.Role, change func(*reference.Weights) bool) func(*reference.Weights) bool {
	return func(w *reference.Weights) bool {
		w.Tensors = slices.DeleteFunc(w.Tensors, func(t reference.Tensor) bool { return t.Role == role })
		return change(w)
	}
}

// exchanged exchanges the tensors of two roles in every layer.
func exchanged(a, b engine.Role) func(*reference.Weights) bool {
	return func(w *reference.Weights) bool {
		changed := false
		for layer := range w.Desc.Layers {
			i, j := w.Find(a, layer), w.Find(b, layer)
			if i >= 0 && j >= 0 && slices.Equal(w.Tensors[i].Dims, w.Tensors[j].Dims) {
				w.Tensors[i].Bytes, w.Tensors[j].Bytes = w.Tensors[j].Bytes, w.Tensors[i].Bytes
				changed = true
			}
		}
		return changed
	}
}

// swapped exchanges the first n rows of a role's tensors with the n rows after them; 0 = leaves
// a layer.
func swapped(role engine.Role, rows func(*engine.Layer) int) func(*reference.Weights) bool {
	return rewritten(role, func(l *engine.Layer, row int, text []byte) []byte {
		n := rows(l) * row
		if n == 0 {
			return nil
		}
		return slices.Concat(text[n:2*n], text[:n], text[2*n:])
	})
}

// reversed turns the order of the numbers of each row, which are f32.
func reversed(role engine.Role) func(*reference.Weights) bool {
	return rewritten(role, func(_ *engine.Layer, row int, text []byte) (out []byte) {
		for at := 0; at < len(text); at += row {
			for i := row - 4; i >= 0; i -= 4 {
				out = append(out, text[at+i:at+i+4]...)
			}
		}
		return out
	})
}

// rewritten gives the tensors of a role other bytes: what change makes from those and the bytes of
// a row, nil = the same.
func rewritten(role engine.Role, change func(l *engine.Layer, row int, text []byte) []byte) func(*reference.Weights) bool {
	return func(w *reference.Weights) bool {
		changed := false
		for layer := range w.Desc.Layers {
			i := w.Find(role, layer)
			if i < 0 {
				continue
			}
			if out := change(&w.Desc.Layers[layer], 4*int(w.Tensors[i].Dims[0]), w.Tensors[i].Bytes); out != nil {
				w.Tensors[i].Bytes, changed = out, true
			}
		}
		return changed
	}
}

func TestFamilyBoundCatchesMistakes(t *testing.T) {
	// The small models and the bound are sharp: each mistake in what a family reads fails the
	// comparison with llama.cpp.
	used := map[string]bool{}
	for _, name := range smallModels() {
		want, w := goldenOf(t, name), smallModel(t, name, 0)
		for mistake, mutate := range mutations {
			mutated := reference.Weights{Desc: w.Desc, Tensors: slices.Clone(w.Tensors)}
			mutated.Desc.Ropes, mutated.Desc.Layers = slices.Clone(w.Desc.Ropes), slices.Clone(w.Desc.Layers)
			for i := range mutated.Desc.Ropes {
				mutated.Desc.Ropes[i].Divisors = slices.Clone(mutated.Desc.Ropes[i].Divisors)
			}
			if !mutate(&mutated) || rules.CheckModel(&mutated.Desc) != nil {
				continue
			}
			used[mistake] = true
			decoder, err := reference.NewDecoder(&mutated)
			require.NoError(t, err)
			worst := want.worst(decoder, 50)
			t.Logf("%s with %s: %.2g", name, mistake, worst)
			if math.IsNaN(worst) {
				worst = math.Inf(1)
			}
			require.GreaterOrEqual(t, worst, 3*logprobBound, "%s with %s", name, mistake)
		}
	}
	require.Len(t, used, len(mutations), "every mistake concerns a family")
}
