package synth

import (
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// tensor is one tensor to write: a matrix in a weight type, or a vector in F32 made by fill.
type tensor struct {
	name string
	typ  gguf.Type
	dims []uint64
	fill func(s stream, i int) float32
}

// Write writes a complete file of the shape with matrices of the mix to w, as a stream. Errors wrap ErrShape, or are w's own.
func Write(w io.Writer, shape Shape, mix Mix, seed uint64) error {
	d, err := shape.complete()
	if err != nil {
		return fmt.Errorf("write model %q: %w", shape.Name, err)
	}
	if !mix.writable() {
		return fmt.Errorf("write model %q: no weights of type %v: %w", shape.Name, mix, ErrShape)
	}
	out := gguf.NewWriter(w)
	describe(out, shape, d, mix.fileType, seed)
	tensors := list(d, mix)
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

// TensorBytes returns the bytes of all tensors that Write would write: the file's size but for its header.
func TensorBytes(shape Shape, mix Mix) (uint64, error) {
	d, err := shape.complete()
	if err != nil {
		return 0, err
	}
	if !mix.writable() {
		return 0, fmt.Errorf("no weights of type %v: %w", mix, ErrShape)
	}
	var total uint64
	for _, t := range list(d, mix) {
		total += t.typ.RowBytes(t.elements())
	}
	return total, nil
}

func describe(out *gguf.Writer, shape Shape, d engine.ModelDesc, fileType uint32, seed uint64) {
	out.Set("general.architecture", shape.Architecture)
	out.Set("general.name", shape.Name)
	out.Set("general.description", fmt.Sprintf("Random weights, seed %d.", seed))
	out.Set("general.file_type", fileType)
	out.Set("general.quantization_version", uint32(2))
	set := func(key string, value any) { out.Set(shape.Architecture+"."+key, value) }
	set("block_count", uint32(d.Layers))
	set("context_length", uint32(d.Context))
	set("embedding_length", uint32(d.Hidden))
	set("feed_forward_length", uint32(d.FFN))
	set("vocab_size", uint32(d.Vocab))
	set("attention.head_count", uint32(d.Heads))
	set("attention.head_count_kv", uint32(d.KVHeads))
	set("attention.key_length", uint32(d.HeadDim))
	set("attention.value_length", uint32(d.HeadDim))
	set("attention.layer_norm_rms_epsilon", d.NormEps)
	set("rope.dimension_count", uint32(d.RopeDims))
	set("rope.freq_base", d.RopeBase)
	if d.RopeScale != 1 {
		set("rope.scaling.type", "linear")
		set("rope.scaling.factor", d.RopeScale)
	}
	if d.AttnScale != 0 {
		set("attention.scale", d.AttnScale)
	}
}

// list returns the tensors of a model in file order: the head and its norm come behind the layers.
func list(d engine.ModelDesc, mix Mix) []tensor {
	var ts []tensor
	add := func(role engine.Role, layer int) {
		if !role.Of(d) {
			return
		}
		t := tensor{name: arch.TensorName(role, layer), typ: gguf.F32}
		for _, n := range role.Dims(d) {
			t.dims = append(t.dims, uint64(n))
		}
		if role.Vector() {
			t.fill = fillOf(role, d)
		} else {
			t.typ = fit(mix.of(role, layer, d), int(t.dims[0]))
		}
		ts = append(ts, t)
	}
	add(engine.RoleEmbedding, -1)
	add(engine.RoleRopeFactors, -1)
	for layer := range d.Layers {
		for role := range engine.RoleCount {
			if role.InLayer() {
				add(role, layer)
			}
		}
	}
	add(engine.RoleOutputNorm, -1)
	add(engine.RoleOutput, -1)
	return ts
}

// fillOf makes the numbers of a vector.
func fillOf(role engine.Role, d engine.ModelDesc) func(stream, int) float32 {
	switch role {
	case engine.RoleRopeFactors:
		return func(_ stream, i int) float32 { return ropeFactor(d, i) }
	case engine.RoleQBias, engine.RoleKBias, engine.RoleVBias, engine.RoleOBias:
		return bias
	default:
		return norm
	}
}

// fit returns the type a matrix with rows of n gets when typ is asked for.
func fit(typ gguf.Type, n int) gguf.Type {
	if n%256 != 0 {
		switch typ {
		case gguf.Q4K:
			typ = gguf.Q5_0
		case gguf.Q5K:
			typ = gguf.Q5_1
		case gguf.Q6K:
			typ = gguf.Q8_0
		}
	}
	if uint64(n)%typ.BlockSize() != 0 {
		return gguf.F16
	}
	return typ
}

// norm scatters from 0.75 to 1.25, bias from -0.25 to 0.25.
func norm(s stream, i int) float32 { return 0.75 + unit(s.word(uint64(i)))/2 }
func bias(s stream, i int) float32 { return unit(s.word(uint64(i)))/2 - 0.25 }

// unit returns a number from 0 up to and without 1.
func unit(w uint64) float32 { return float32(w>>40) / (1 << 24) }

// ropeFactor returns what frequency i is divided by for a context extended 8 times from 8192 positions: nothing for
// wavelengths below a quarter of the old context, 8 for those beyond it, and a blend between.
func ropeFactor(d engine.ModelDesc, i int) float32 {
	const old, factor, low, high = 8192.0, 8.0, 1.0, 4.0
	wavelength := 2 * math.Pi * math.Pow(float64(d.RopeBase), 2*float64(i)/float64(d.RopeDims))
	smooth := min(1, max(0, (old/wavelength-low)/(high-low)))
	return float32(1 / ((1-smooth)/factor + smooth))
}
