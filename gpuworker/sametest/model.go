package sametest

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/enginetest"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

// model is a shape with random weights, and the cache that it is run with.
type model struct {
	name  string
	desc  engine.ModelDesc
	types func(engine.Role) engine.Type
	kv    engine.Type
}

// Any scenario may draw one of the first models; the two behind them cost more and have kinds of scenario of their own. The last
// ones are drawn where the engine computes their blocks.
const (
	modelRows      = 0 // cheap enough for hundreds of rows a step
	numOrdinary    = 8
	modelWide      = numOrdinary
	modelLong      = numOrdinary + 1
	firstDescribed = numOrdinary + 2
	numRandom      = 8
	numDescribed   = numRandom + 5
)

// models differ in all that decides which kernels run: widths of heads, how many share keys, types,
// rotation, norms, biases. The described ones have random layers with windows, caps, shared keys
// and all else that a description may have. After these come layers that carry a state, layers that
// attend to latents, experts that several GPUs divide, and a window group that most prompts leave.
var models = withDescribed([firstDescribed + numDescribed]model{
	modelRows: {"heads of 20, three to a key", enginetest.Small().Model(), one(engine.F32), engine.F32},
	{"heads of 64, F16", shape(func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 64, 4, 4, 64, 64, 64
	}), one(engine.Q8_0), engine.F16},
	{"one key for four heads of 128", shape(func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims, d.QKVBias = 64, 4, 1, 128, 96, 128, true
	}), one(engine.BF16), engine.BF16},
	{"odd heads of 7, tied, norms of heads", shape(func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.Vocab, d.RopeDims = 10, 3, 1, 7, 11, 37, 6
		d.QKNorm, d.TiedHead, d.RopeStyle = true, true, engine.RopeNeox
	}), one(engine.F16), engine.F16},
	{"two heads of 256, 4 bits", shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 64, 2, 1, 256, 64, 64
	}), one(engine.Q4_0), engine.BF16},
	{"four heads of 512 for one key", shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 64, 4, 1, 512, 64, 128
	}), one(engine.Q8_0), engine.F16},
	{"every kind of product", shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 256, 8, 2, 32, 256, 32
		d.OBias, d.RopeFactors = true, true
	}), fewBits, engine.F16},
	{"sixteen heads for one key", shape(func(d *engine.Uniform) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 32, 16, 1, 16, 32, 8
	}), one(engine.Q5_1), engine.F32},
	modelWide: {"a width of 4096", shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 4096, 8, 2, 128, 512, 128
	}), mixed, engine.BF16},
	modelLong: {"keys beyond 65536", shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 32, 1, 1, 32, 32, 32
		d.Context, d.RopeBase = 1<<16+4096, 500_000
	}), one(engine.Q8_0), engine.F16},
})

func withDescribed(models [firstDescribed + numDescribed]model) [firstDescribed + numDescribed]model {
	for i := range numRandom {
		desc := enginetest.Description(uint64(i))
		desc.Context = 1024
		weights, kv := []engine.Type{engine.F32, engine.BF16}[i%2], []engine.Type{engine.F32, engine.F16, engine.BF16}[i%3]
		models[firstDescribed+i] = model{name: fmt.Sprintf("random description %d", i), desc: desc, types: one(weights), kv: kv}
	}
	for i, kv := range []engine.Type{engine.F32, engine.F16} {
		desc := enginetest.Hybrid()
		desc.Context = 1024
		if i == 1 { // widths that GPUs have kernels of their own for
			desc.Layers[0].Mixer.KeyDim, desc.Layers[0].Mixer.ValueDim = 64, 64
			desc.Layers[3].Mixer.KeyDim, desc.Layers[3].Mixer.ValueDim, desc.Layers[3].Mixer.Conv = 128, 32, 4
		}
		weights := []engine.Type{engine.F32, engine.BF16}[i]
		models[firstDescribed+numRandom+i] = model{name: fmt.Sprintf("delta nets and convolutions, %d", i), desc: desc, types: one(weights), kv: kv}
	}
	desc := enginetest.Latents()
	desc.Context = 1024
	models[firstDescribed+numRandom+2] = model{name: "latents", desc: desc, types: one(engine.F16), kv: engine.BF16}
	models[firstDescribed+numRandom+3] = model{name: "experts", desc: experts(), types: experts4Bits, kv: engine.F16}
	desc = enginetest.Windowed(37, 20)
	desc.Context = 1024
	models[firstDescribed+numDescribed-1] = model{name: "windows of 37 and 20", desc: desc, types: one(engine.BF16), kv: engine.F16}
	return models
}

// experts is a model that two GPUs divide: a dense layer and layers of experts, with biases, with a
// shared expert and its gate, and with norms of their own.
func experts() engine.ModelDesc {
	d := shape(func(d *engine.Uniform) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 4, 64, 4, 2, 32, 96, 32
	})
	for i, e := range []engine.Experts{
		{Count: 8, Used: 3, Renorm: true, RouterBias: true, Bias: true},
		{Count: 12, Used: 2, Gating: engine.GateSigmoid, ChoiceBias: true, SharedWidth: 80, SharedGate: true},
		{Count: 6, Used: 2, Renorm: true, SharedWidth: 64, Apart: true, Scales: true},
	} {
		l := &d.Layers[1+i]
		l.MLP.Kind, l.MLP.Experts, l.Mixer.Sinks = engine.MLPExperts, e, i == 0
	}
	d.Layers[1].MLP.Activation = engine.ClampedSwish
	d.Layers[3].MLP.EndNorm, d.Layers[3].Mixer.EndNorm, d.Layers[3].OutputScale = true, true, true
	return d
}

func experts4Bits(r engine.Role) engine.Type {
	if r == engine.RoleExpertGate || r == engine.RoleExpertUp || r == engine.RoleExpertDown {
		return engine.MXFP4
	}
	return engine.F16
}

// mixes reports whether a layer has experts.
func (m *model) mixes() bool {
	return slices.ContainsFunc(m.desc.Layers, func(l engine.Layer) bool { return l.MLP.Kind == engine.MLPExperts })
}

// latent reports whether a layer attends to a latent.
func (m *model) latent() bool {
	return slices.ContainsFunc(m.desc.Layers, func(l engine.Layer) bool { return l.Mixer.Kind == engine.MixLatent })
}

// grouped reports whether loops have a window group.
func (m *model) grouped() bool { return m.desc.GroupWindow() > 0 && !m.stateful() }

// stateful reports whether layers carry a state.
func (m *model) stateful() bool { return m.desc.StateFloats() > 0 }

// shape is a small model with one thing or another changed.
func shape(change func(*engine.Uniform)) engine.ModelDesc {
	d := engine.Uniform{
		Layers: 2, Vocab: 97, Context: 1024, RopeStyle: engine.RopeNorm, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
	change(&d)
	return d.Model()
}

func one(t engine.Type) func(engine.Role) engine.Type {
	return func(engine.Role) engine.Type { return t }
}

// mixed gives roles of one model different types.
func mixed(r engine.Role) engine.Type {
	return []engine.Type{engine.Q8_0, engine.Q4_K, engine.BF16, engine.Q6_K, engine.F16, engine.Q4_0}[int(r)%6]
}

// fewBits are the types of two to four bits and scales of scales.
func fewBits(r engine.Role) engine.Type {
	return map[engine.Role]engine.Type{
		engine.RoleEmbedding: engine.IQ4XS, engine.RoleOutput: engine.IQ3S, engine.RoleQ: engine.Q2_K, engine.RoleK: engine.Q3_K,
		engine.RoleV: engine.IQ3XXS, engine.RoleO: engine.IQ2XXS, engine.RoleGate: engine.IQ2XS, engine.RoleUp: engine.IQ2S,
		engine.RoleDown: engine.Q4_K,
	}[r]
}

func (m *model) weights(seed uint64) *reference.Weights {
	return enginetest.Random(m.desc, m.types, seed)
}
