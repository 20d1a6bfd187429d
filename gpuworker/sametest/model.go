package sametest

import (
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

// Any scenario may draw one of the first models; those behind them cost more and have kinds of scenario of their own.
const (
	modelRows   = 0 // cheap enough for hundreds of rows a step
	numOrdinary = 7
	modelWide   = numOrdinary
	modelLong   = numOrdinary + 1
)

// models differ in all that decides which kernels run: widths of heads, how many share keys, types, rotation, norms, biases.
var models = [...]model{
	modelRows: {"heads of 20, three to a key", enginetest.Small(), one(engine.F32), engine.F32},
	{"heads of 64, F16", shape(func(d *engine.ModelDesc) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 64, 4, 4, 64, 64, 64
	}), one(engine.Q8_0), engine.F16},
	{"one key for four heads of 128", shape(func(d *engine.ModelDesc) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims, d.QKVBias = 64, 4, 1, 128, 96, 128, true
	}), one(engine.BF16), engine.BF16},
	{"odd heads of 7, tied, norms of heads", shape(func(d *engine.ModelDesc) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.Vocab, d.RopeDims = 10, 3, 1, 7, 11, 37, 6
		d.QKNorm, d.TiedHead, d.RopeStyle = true, true, engine.RopeNeox
	}), one(engine.F16), engine.F16},
	{"two heads of 256, 4 bits", shape(func(d *engine.ModelDesc) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 64, 2, 1, 256, 64, 64
	}), one(engine.Q4_0), engine.BF16},
	{"every kind of product", shape(func(d *engine.ModelDesc) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 256, 8, 2, 32, 256, 32
		d.OBias, d.RopeFactors = true, true
	}), mixed, engine.F16},
	{"sixteen heads for one key", shape(func(d *engine.ModelDesc) {
		d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 32, 16, 1, 16, 32, 8
	}), one(engine.Q5_1), engine.F32},
	modelWide: {"a width of 4096", shape(func(d *engine.ModelDesc) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 4096, 8, 2, 128, 512, 128
	}), mixed, engine.BF16},
	modelLong: {"keys beyond 65536", shape(func(d *engine.ModelDesc) {
		d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.RopeDims = 1, 32, 1, 1, 32, 32, 32
		d.Context, d.RopeBase = 1<<16+4096, 500_000
	}), one(engine.Q8_0), engine.F16},
}

// shape is a small model with one thing or another changed.
func shape(change func(*engine.ModelDesc)) engine.ModelDesc {
	d := engine.ModelDesc{
		Layers: 2, Vocab: 97, Context: 1024, RopeStyle: engine.RopeNorm, RopeBase: 10000, RopeScale: 1, NormEps: 1e-5,
	}
	change(&d)
	return d
}

func one(t engine.Type) func(engine.Role) engine.Type {
	return func(engine.Role) engine.Type { return t }
}

// mixed gives roles of one model different types.
func mixed(r engine.Role) engine.Type {
	return []engine.Type{engine.Q8_0, engine.Q4_K, engine.BF16, engine.Q6_K, engine.F16, engine.Q4_0}[int(r)%6]
}

func (m *model) weights(seed uint64) *reference.Weights {
	return enginetest.Random(m.desc, m.types, seed)
}
