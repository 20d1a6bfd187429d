package engine

import "fmt"

// Role is the role of a tensor in its model. File readers, writers, engines in Go and the tests of
// all engines use one table of roles. The native engines have a second one, and package enginetest
// compares the two.
type Role int32

// Roles. The ABI has the same numbers.
const (
	RoleEmbedding Role = iota
	RoleOutputNorm
	RoleOutput
	RoleAttnNorm
	RoleQ
	RoleK
	RoleV
	RoleQBias
	RoleKBias
	RoleVBias
	RoleQNorm
	RoleKNorm
	RoleO
	RoleOBias
	RoleAttnEndNorm
	RoleFFNNorm
	RoleGate
	RoleUp
	RoleDown
	RoleFFNEndNorm
	RoleLayerScale
	RoleLayerInputEmbedding
	RoleLayerInputProjection
	RoleLayerInputNorm
	RoleLayerInputGate
	RoleLayerInputDown
	RoleLayerInputEndNorm
	RoleRouter
	RoleChoiceBias
	RoleExpertGate
	RoleExpertUp
	RoleExpertDown
	RoleSharedRouter
	RoleSharedGate
	RoleSharedUp
	RoleSharedDown
	RoleSinks
	RoleRouterBias
	RoleExpertGateBias
	RoleExpertUpBias
	RoleExpertDownBias
	RoleRouterNorm
	RoleExpertNorm
	RoleExpertEndNorm
	RoleSharedEndNorm
	RoleExpertScale
	RoleMixIn
	RoleMixConv
	RoleMixOut
	RoleMixGate
	RoleDeltaBeta
	RoleDeltaAlpha
	RoleDeltaDT
	RoleDeltaA
	RoleDeltaNorm
	RoleQDown
	RoleQLatentNorm
	RoleQUp
	RoleKVDown
	RoleKVLatentNorm
	RoleKUp
	RoleVUp
	RoleCount
)

// roles is the table: the name of a tensor in messages, its dims (in, out), which are ggml's ne[0]
// and ne[1], and which models and layers have it (nil: all). A vector has one dim: a norm, a bias
// or a scale. One more dim counts the matrices or vectors of a stack, one for each expert, head or
// column of a convolution. Functions of outer roles ignore the layer.
var roles = [RoleCount]struct {
	name   string
	vector bool
	dims   func(*ModelDesc, *Layer) []int64
	of     func(*ModelDesc, *Layer) bool
}{
	RoleEmbedding:   {"embedding", false, dims(hidden, vocab), nil},
	RoleOutputNorm:  {"output norm", true, dims(hidden), nil},
	RoleOutput:      {"output", false, dims(hidden, vocab), func(d *ModelDesc, _ *Layer) bool { return !d.TiedHead }},
	RoleAttnNorm:    {"attention norm", true, dims(hidden), mixer(func(m *Mixer) bool { return !m.NoNorm })},
	RoleQ:           {"q", false, dims(hidden, queries), mixer(directQueries)},
	RoleK:           {"k", false, dims(hidden, keys), attention(ownKeys)},
	RoleV:           {"v", false, dims(hidden, values), attention(func(m *Mixer) bool { return ownKeys(m) && !m.ValueIsKey })},
	RoleQBias:       {"q bias", true, dims(queries), attention(func(m *Mixer) bool { return m.QKVBias })},
	RoleKBias:       {"k bias", true, dims(keys), attention(func(m *Mixer) bool { return m.QKVBias && ownKeys(m) })},
	RoleVBias:       {"v bias", true, dims(values), attention(func(m *Mixer) bool { return m.QKVBias && ownKeys(m) && !m.ValueIsKey })},
	RoleQNorm:       {"q norm", true, dims(queryNorm), attention(qkNorm)},
	RoleKNorm:       {"k norm", true, dims(keyNorm), attention(func(m *Mixer) bool { return qkNorm(m) && ownKeys(m) })},
	RoleO:           {"o", false, dims(attended, hidden), mixer((*Mixer).KeepsKeys)},
	RoleOBias:       {"o bias", true, dims(hidden), attention(func(m *Mixer) bool { return m.OutBias })},
	RoleAttnEndNorm: {"attention end norm", true, dims(hidden), mixer(func(m *Mixer) bool { return m.EndNorm })},
	RoleFFNNorm:     {"ffn norm", true, dims(hidden), mlp(func(m *MLP) bool { return !m.NoNorm })},
	RoleGate:        {"gate", false, dims(hidden, inner), mlp(dense)},
	RoleUp:          {"up", false, dims(hidden, inner), mlp(dense)},
	RoleDown:        {"down", false, dims(inner, hidden), mlp(dense)},
	RoleFFNEndNorm:  {"ffn end norm", true, dims(hidden), mlp(func(m *MLP) bool { return m.EndNorm })},
	RoleLayerScale:  {"layer scale", true, dims(one), func(_ *ModelDesc, l *Layer) bool { return l.OutputScale }},

	RoleLayerInputEmbedding:  {"layer input embedding", false, dims(inputs, vocab), hasInputs},
	RoleLayerInputProjection: {"layer input projection", false, dims(hidden, inputs), hasInputs},
	RoleLayerInputNorm:       {"layer input norm", true, dims(input), hasInputs},
	RoleLayerInputGate:       {"layer input gate", false, dims(hidden, input), hasInputs},
	RoleLayerInputDown:       {"layer input down", false, dims(input, hidden), hasInputs},
	RoleLayerInputEndNorm:    {"layer input end norm", true, dims(hidden), hasInputs},

	RoleRouter:       {"router", false, dims(hidden, experts), mlp(mixture)},
	RoleChoiceBias:   {"choice bias", true, dims(experts), mlp(func(m *MLP) bool { return mixture(m) && m.Experts.ChoiceBias })},
	RoleExpertGate:   {"expert gate", false, dims(hidden, inner, experts), mlp(mixture)},
	RoleExpertUp:     {"expert up", false, dims(hidden, inner, experts), mlp(mixture)},
	RoleExpertDown:   {"expert down", false, dims(inner, hidden, experts), mlp(mixture)},
	RoleSharedRouter: {"shared router", true, dims(hidden), mlp(func(m *MLP) bool { return sharing(m) && m.Experts.SharedGate })},
	RoleSharedGate:   {"shared gate", false, dims(hidden, sharedInner), mlp(sharing)},
	RoleSharedUp:     {"shared up", false, dims(hidden, sharedInner), mlp(sharing)},
	RoleSharedDown:   {"shared down", false, dims(sharedInner, hidden), mlp(sharing)},

	RoleSinks:          {"sinks", true, dims(heads), attention(func(m *Mixer) bool { return m.Sinks })},
	RoleRouterBias:     {"router bias", true, dims(experts), mlp(func(m *MLP) bool { return mixture(m) && m.Experts.RouterBias })},
	RoleExpertGateBias: {"expert gate bias", true, dims(inner, experts), mlp(expertBias)},
	RoleExpertUpBias:   {"expert up bias", true, dims(inner, experts), mlp(expertBias)},
	RoleExpertDownBias: {"expert down bias", true, dims(hidden, experts), mlp(expertBias)},

	RoleRouterNorm:    {"router norm", true, dims(hidden), mlp(apart)},
	RoleExpertNorm:    {"expert norm", true, dims(hidden), mlp(apart)},
	RoleExpertEndNorm: {"expert end norm", true, dims(hidden), mlp(apart)},
	RoleSharedEndNorm: {"shared end norm", true, dims(hidden), mlp(apart)},
	RoleExpertScale:   {"expert scale", true, dims(experts), mlp(func(m *MLP) bool { return mixture(m) && m.Experts.Scales })},

	RoleMixIn:      {"mixer input", false, dims(hidden, mixerInputs), mixer(carriesState)},
	RoleMixConv:    {"mixer convolution", true, dims(taps, channels), mixer(carriesState)},
	RoleMixOut:     {"mixer output", false, dims(mixed, hidden), mixer(carriesState)},
	RoleMixGate:    {"mixer gate", false, dims(hidden, mixed), mixer(delta)},
	RoleDeltaBeta:  {"delta beta", false, dims(hidden, heads), mixer(delta)},
	RoleDeltaAlpha: {"delta alpha", false, dims(hidden, heads), mixer(delta)},
	RoleDeltaDT:    {"delta dt", true, dims(heads), mixer(delta)},
	RoleDeltaA:     {"delta a", true, dims(heads), mixer(delta)},
	RoleDeltaNorm:  {"delta norm", true, dims(valueDim), mixer(delta)},

	RoleQDown:        {"q down", false, dims(hidden, queryLatent), mixer(queriesByLatent)},
	RoleQLatentNorm:  {"q latent norm", true, dims(queryLatent), mixer(queriesByLatent)},
	RoleQUp:          {"q up", false, dims(queryLatent, queries), mixer(queriesByLatent)},
	RoleKVDown:       {"kv down", false, dims(hidden, cached), mixer(latentKeys)},
	RoleKVLatentNorm: {"kv latent norm", true, dims(latent), mixer(latentKeys)},
	RoleKUp:          {"k up", false, dims(notRotated, latent, heads), mixer(latentKeys)},
	RoleVUp:          {"v up", false, dims(latent, valueDim, heads), mixer(latentKeys)},
}

// size returns one dim of a tensor.
type size func(*ModelDesc, *Layer) int64

func one(*ModelDesc, *Layer) int64        { return 1 }
func hidden(d *ModelDesc, _ *Layer) int64 { return int64(d.Hidden) }
func vocab(d *ModelDesc, _ *Layer) int64  { return int64(d.Vocab) }
func inner(_ *ModelDesc, l *Layer) int64  { return int64(l.MLP.Width) }

func experts(_ *ModelDesc, l *Layer) int64     { return int64(l.MLP.Experts.Count) }
func sharedInner(_ *ModelDesc, l *Layer) int64 { return int64(l.MLP.Experts.SharedWidth) }

// input is the width of a layer's input, inputs that of all layers.
func input(d *ModelDesc, _ *Layer) int64  { return int64(d.LayerInputWidth) }
func inputs(d *ModelDesc, _ *Layer) int64 { return int64(d.LayerInputWidth) * int64(len(d.Layers)) }

func hasInputs(d *ModelDesc, _ *Layer) bool { return d.LayerInputWidth != 0 }

func heads(_ *ModelDesc, l *Layer) int64 { return int64(l.Mixer.Heads) }

// queries is the width of Q, with the gates in it.
func queries(_ *ModelDesc, l *Layer) int64 {
	n := int64(l.Mixer.Heads) * int64(l.Mixer.KeyDim)
	if l.Mixer.OutGate {
		n *= 2
	}
	return n
}

func keys(_ *ModelDesc, l *Layer) int64   { return int64(l.Mixer.KVHeads) * int64(l.Mixer.KeyDim) }
func values(_ *ModelDesc, l *Layer) int64 { return int64(l.Mixer.KVHeads) * int64(l.Mixer.ValueDim) }

// attended is the width of what attention returns: values of every head.
func attended(_ *ModelDesc, l *Layer) int64 { return int64(l.Mixer.Heads) * int64(l.Mixer.ValueDim) }

func taps(_ *ModelDesc, l *Layer) int64     { return int64(l.Mixer.Conv) }
func channels(d *ModelDesc, l *Layer) int64 { return int64(l.Mixer.Channels(d.Hidden)) }
func valueDim(_ *ModelDesc, l *Layer) int64 { return int64(l.Mixer.ValueDim) }

// mixerInputs is the width of what a layer that carries a state makes of its input, and mixed that
// of its output.
func mixerInputs(d *ModelDesc, l *Layer) int64 {
	if l.Mixer.Kind == MixConv {
		return 3 * int64(d.Hidden)
	}
	return channels(d, l)
}

func mixed(d *ModelDesc, l *Layer) int64 {
	if l.Mixer.Kind == MixConv {
		return int64(d.Hidden)
	}
	return attended(d, l)
}

func queryNorm(d *ModelDesc, l *Layer) int64 {
	if l.Mixer.QKRowNorm {
		return queries(d, l)
	}
	return int64(l.Mixer.KeyDim)
}

func keyNorm(d *ModelDesc, l *Layer) int64 {
	if l.Mixer.QKRowNorm {
		return keys(d, l)
	}
	return int64(l.Mixer.KeyDim)
}

func queryLatent(_ *ModelDesc, l *Layer) int64 { return int64(l.Mixer.QueryLatent) }
func latent(_ *ModelDesc, l *Layer) int64      { return int64(l.Mixer.Latent) }

// cached is the width of a position's latent and rotated key, and notRotated that of the other part
// of a head of Q.
func cached(d *ModelDesc, l *Layer) int64 { return int64(l.Mixer.Latent) + int64(d.Rotated(&l.Mixer)) }
func notRotated(d *ModelDesc, l *Layer) int64 {
	return int64(l.Mixer.KeyDim) - int64(d.Rotated(&l.Mixer))
}

func ownKeys(m *Mixer) bool { return m.KVLayer == 0 }
func qkNorm(m *Mixer) bool  { return m.QKNorm || m.QKRowNorm }

func latentKeys(m *Mixer) bool      { return m.Kind == MixLatent }
func queriesByLatent(m *Mixer) bool { return m.Kind == MixLatent && m.QueryLatent != 0 }
func directQueries(m *Mixer) bool   { return m.KeepsKeys() && !queriesByLatent(m) }

func delta(m *Mixer) bool        { return m.Kind == MixDelta }
func carriesState(m *Mixer) bool { return m.Kind == MixDelta || m.Kind == MixConv }

func mixer(of func(*Mixer) bool) func(*ModelDesc, *Layer) bool {
	return func(_ *ModelDesc, l *Layer) bool { return of(&l.Mixer) }
}

func attention(of func(*Mixer) bool) func(*ModelDesc, *Layer) bool {
	return func(_ *ModelDesc, l *Layer) bool { return l.Mixer.Kind == MixAttention && of(&l.Mixer) }
}

func dense(m *MLP) bool   { return m.Kind == MLPDense }
func mixture(m *MLP) bool { return m.Kind == MLPExperts }
func sharing(m *MLP) bool { return mixture(m) && m.Experts.SharedWidth > 0 }

func expertBias(m *MLP) bool { return mixture(m) && m.Experts.Bias }
func apart(m *MLP) bool      { return sharing(m) && m.Experts.Apart }

func mlp(of func(*MLP) bool) func(*ModelDesc, *Layer) bool {
	return func(_ *ModelDesc, l *Layer) bool { return of(&l.MLP) }
}

func dims(sizes ...size) func(*ModelDesc, *Layer) []int64 {
	return func(d *ModelDesc, l *Layer) []int64 {
		out := make([]int64, len(sizes))
		for i, size := range sizes {
			out[i] = size(d, l)
		}
		return out
	}
}

// Known reports whether the role exists. Only Known and String may be called on others.
func (r Role) Known() bool { return r >= 0 && r < RoleCount }

// String returns the name of the role in messages.
func (r Role) String() string {
	if !r.Known() {
		return fmt.Sprintf("role %d", int32(r))
	}
	return roles[r].name
}

// InLayer reports whether layers have such tensors. If not, the model has one, and its layer is -1.
func (r Role) InLayer() bool {
	switch r {
	case RoleEmbedding, RoleOutputNorm, RoleOutput, RoleLayerInputEmbedding, RoleLayerInputProjection, RoleLayerInputNorm:
		return false
	default:
		return true
	}
}

// Vector reports whether the tensor is a vector, or a stack of vectors, whose type is F32. Others are
// matrices or stacks of them.
func (r Role) Vector() bool { return roles[r].vector }

// Dims returns the dims of the tensor in a layer of the model, ne[0] first. The layer is ignored
// for outer roles.
func (r Role) Dims(d *ModelDesc, layer int) []int64 { return roles[r].dims(d, r.layer(d, layer)) }

// Of reports whether a layer of the model has the tensor. If so, it must be bound. The layer is
// ignored for outer roles.
func (r Role) Of(d *ModelDesc, layer int) bool {
	return roles[r].of == nil || roles[r].of(d, r.layer(d, layer))
}

func (r Role) layer(d *ModelDesc, layer int) *Layer {
	if !r.InLayer() {
		return nil
	}
	return &d.Layers[layer]
}
