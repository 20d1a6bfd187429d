package synth

import (
	"fmt"
	"io"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// tensor is one tensor to write: a matrix or a stack of them in a weight type, or a vector in F32
// made by fill.
type tensor struct {
	name string
	typ  gguf.Type
	dims []uint64
	fill func(s stream, i int) float32
	gain float64   // of the standard deviation of a matrix; 0 = 1
	rows []float32 // factors of the rows of a matrix of F32; nil = 1
}

// Write writes a complete file of the shape with matrices of the mix to w, as a stream. Errors wrap
// ErrShape, or come from w.
func Write(w io.Writer, shape Shape, mix Mix, seed uint64) error {
	p, err := newPlan(shape)
	if err != nil {
		return fmt.Errorf("write model %q: %w", shape.Name, err)
	}
	if !mix.writable() {
		return fmt.Errorf("write model %q: no weights of type %v: %w", shape.Name, mix, ErrShape)
	}
	out := gguf.NewWriter(w)
	out.Set("general.architecture", shape.Architecture)
	out.Set("general.name", shape.Name)
	out.Set("general.description", fmt.Sprintf("Random weights, seed %d.", seed))
	out.Set("general.file_type", mix.fileType)
	out.Set("general.quantization_version", uint32(2))
	out.Set("tokenizer.ggml.model", "no_vocab") // llama.cpp loads no file without it
	for _, pair := range p.pairs {
		out.Set(shape.Architecture+"."+pair.key, pair.value)
	}
	tensors := p.list(mix)
	for _, t := range tensors {
		out.Tensor(t.name, t.typ, t.dims...)
	}
	if err := out.Begin(); err != nil {
		return fmt.Errorf("write model %q: %w", shape.Name, err)
	}
	for i, t := range tensors {
		if err := t.write(out, newStream(seed, uint64(i))); err != nil {
			return fmt.Errorf("write model %q: tensor %s: %w", shape.Name, t.name, err)
		}
	}
	return out.Close()
}

// TensorBytes returns the bytes of all tensors that Write would write: the file's size without its
// header.
func TensorBytes(shape Shape, mix Mix) (uint64, error) {
	p, err := newPlan(shape)
	if err != nil {
		return 0, err
	}
	if !mix.writable() {
		return 0, fmt.Errorf("no weights of type %v: %w", mix, ErrShape)
	}
	var total uint64
	for _, t := range p.list(mix) {
		total += t.typ.RowBytes(t.elements())
	}
	return total, nil
}

// pair is a key without the architecture's prefix, and its value.
type pair struct {
	key   string
	value any
}

// plan is what a file of a shape has besides the bytes of its tensors.
type plan struct {
	pairs   []pair
	layout  *arch.Layout
	factors []tensor // divisors of frequencies
	skew    float64  // of routers
}

func newPlan(shape Shape) (*plan, error) {
	if shape.Family != nil {
		return shape.Family.plan(shape.Architecture)
	}
	u, err := shape.complete()
	if err != nil {
		return nil, err
	}
	d := u.Model()
	p := &plan{pairs: pairs(u), layout: &arch.Layout{Desc: d}}
	p.divide(arch.RopeFactorsName, d.Ropes[0].Divisors)
	return p, nil
}

func pairs(d engine.Uniform) []pair {
	out := []pair{
		{"block_count", uint32(d.Layers)},
		{"context_length", uint32(d.Context)},
		{"embedding_length", uint32(d.Hidden)},
		{"feed_forward_length", uint32(d.FFN)},
		{"vocab_size", uint32(d.Vocab)},
		{"attention.head_count", uint32(d.Heads)},
		{"attention.head_count_kv", uint32(d.KVHeads)},
		{"attention.key_length", uint32(d.HeadDim)},
		{"attention.value_length", uint32(d.HeadDim)},
		{"attention.layer_norm_rms_epsilon", d.NormEps},
		{"rope.dimension_count", uint32(d.RopeDims)},
		{"rope.freq_base", d.RopeBase},
	}
	if d.RopeScale != 1 {
		out = append(out, pair{"rope.scaling.type", "linear"}, pair{"rope.scaling.factor", d.RopeScale})
	}
	if d.AttnScale != 0 {
		out = append(out, pair{"attention.scale", d.AttnScale})
	}
	return out
}

// list returns the tensors of a model in file order: the head and its norm follow the layers.
func (p *plan) list(mix Mix) []tensor {
	d := &p.layout.Desc
	var ts []tensor
	add := func(role engine.Role, layer int) {
		if !role.Of(d, layer) {
			return
		}
		name, roles := p.layout.Tensor(role, layer)
		if roles[0] != role {
			return // a part of the tensor of another role
		}
		t := tensor{name: name, typ: gguf.F32}
		for _, n := range role.Dims(d, layer) {
			t.dims = append(t.dims, uint64(n))
		}
		at := arch.RowsDim(role)
		for _, part := range roles[1:] {
			t.dims[at] += uint64(part.Dims(d, layer)[at])
		}
		if role.Vector() {
			t.fill = fillOf(role)
		} else {
			t.typ = fit(mix.of(role, layer, d), int(t.dims[0]))
			t.gain = gainOf(role, layer, d)
			if role == engine.RoleRouter {
				t.rows = routerScales(d.Layers[layer].MLP.Experts, p.skew, newStream(skewSeed, uint64(layer)))
			}
		}
		ts = append(ts, t)
	}
	add(engine.RoleEmbedding, -1)
	for role := engine.RoleLayerInputEmbedding; role <= engine.RoleLayerInputNorm; role++ {
		add(role, -1)
	}
	ts = append(ts, p.factors...)
	for layer := range d.Layers {
		for role := range engine.RoleCount {
			if role.InLayer() {
				add(role, layer)
			}
		}
	}
	add(engine.RoleOutputNorm, -1)
	add(engine.RoleOutput, -1)
	for _, dense := range p.layout.Dense {
		typ := fit(mix.of(engine.RoleOutput, -1, d), dense.In)
		ts = append(ts, tensor{name: dense.Name, typ: typ, dims: []uint64{uint64(dense.In), uint64(dense.Out)}})
	}
	return ts
}

// divide adds a tensor of divisors, if there are any.
func (p *plan) divide(name string, divisors []float64) {
	if divisors != nil {
		fill := func(_ stream, i int) float32 { return float32(divisors[i]) }
		p.factors = append(p.factors, tensor{name: name, typ: gguf.F32, dims: []uint64{uint64(len(divisors))}, fill: fill})
	}
}

// fillOf makes the numbers of a vector.
func fillOf(role engine.Role) func(stream, int) float32 {
	switch role {
	case engine.RoleQBias, engine.RoleKBias, engine.RoleVBias, engine.RoleOBias, engine.RoleSharedRouter, engine.RoleExpertDownBias:
		return bias
	case engine.RoleSinks, engine.RoleRouterBias:
		return sink
	case engine.RoleExpertGateBias, engine.RoleExpertUpBias:
		return wideBias
	case engine.RoleChoiceBias:
		return choiceBias
	case engine.RoleMixConv:
		return tap
	case engine.RoleDeltaA:
		return decay
	case engine.RoleDeltaDT:
		return step
	default:
		return norm
	}
}

// gainOf makes logits of a router by softmax four times as large as those of other matrices, so
// that a few of many experts have most of the weight, as in trained models. By sigmoid they would
// all be close to one.
func gainOf(role engine.Role, layer int, d *engine.ModelDesc) float64 {
	if role == engine.RoleRouter && d.Layers[layer].MLP.Experts.Gating == engine.GateSoftmax {
		return 4
	}
	return 1
}

// fit returns the type of a matrix with rows of n if typ is requested.
func fit(typ gguf.Type, n int) gguf.Type {
	if n%256 != 0 {
		switch typ {
		case gguf.Q2K, gguf.Q3K, gguf.IQ4XS, gguf.IQ2XXS, gguf.IQ2XS, gguf.IQ2S, gguf.IQ3XXS, gguf.IQ3S:
			typ = gguf.IQ4NL
		case gguf.Q4K:
			typ = gguf.Q5_0
		case gguf.Q5K:
			typ = gguf.Q5_1
		case gguf.Q6K:
			typ = gguf.Q8_0
		}
	}
	if typ == gguf.NVFP4 && n%64 != 0 {
		typ = gguf.MXFP4
	}
	if uint64(n)%typ.BlockSize() != 0 {
		return gguf.F16
	}
	return typ
}

// norm scatters from 0.75 to 1.25, bias from -0.25 to 0.25, sink from -2 to 2, and choiceBias from 0
// to 0.1: not below 0, because transformers gives experts outside of the best groups a score of 0.
// wideBias is often close to 0 and reaches 8 on both sides, beyond what gates and ups are clamped to.
func norm(s stream, i int) float32       { return 0.75 + unit(s.word(uint64(i)))/2 }
func bias(s stream, i int) float32       { return unit(s.word(uint64(i)))/2 - 0.25 }
func sink(s stream, i int) float32       { return 4*unit(s.word(uint64(i))) - 2 }
func choiceBias(s stream, i int) float32 { return unit(s.word(uint64(i))) / 10 }

func wideBias(s stream, i int) float32 {
	u := 2*unit(s.word(uint64(i))) - 1
	return 8 * u * u * u
}

// tap scatters from -2 to 2, and decay from -4 to -0.01, more often near it: with a step from -3 to
// 1, heads remember from one position to hundreds.
func tap(s stream, i int) float32  { return 4*unit(s.word(uint64(i))) - 2 }
func step(s stream, i int) float32 { return 4*unit(s.word(uint64(i))) - 3 }

func decay(s stream, i int) float32 {
	u := unit(s.word(uint64(i)))
	return -0.01 - 4*u*u
}

// unit returns a number from 0 up to and without 1.
func unit(w uint64) float32 { return float32(w>>40) / (1 << 24) }
