package arch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

const embeddingName = "token_embd.weight"

// part is a tensor that a model has once, or once in every layer.
type part struct {
	role engine.Role
	dims func(d *engine.ModelDesc) []int
	need need
}

// need says when a part must be there.
type need int

const (
	always need = iota
	optional
	withQKVBias
	withOBias
	withQKNorm
)

func (n need) met(d *engine.ModelDesc) bool {
	return n == always || n == withQKVBias && d.QKVBias || n == withOBias && d.OBias || n == withQKNorm && d.QKNorm
}

func hidden(d *engine.ModelDesc) []int      { return []int{d.Hidden} }
func vocabulary(d *engine.ModelDesc) []int  { return []int{d.Hidden, d.Vocab} }
func ropeFactors(d *engine.ModelDesc) []int { return []int{d.RopeDims / 2} }
func query(d *engine.ModelDesc) []int       { return []int{d.Hidden, d.Heads * d.HeadDim} }
func keyValue(d *engine.ModelDesc) []int    { return []int{d.Hidden, d.KVHeads * d.HeadDim} }
func queryBias(d *engine.ModelDesc) []int   { return []int{d.Heads * d.HeadDim} }
func keyBias(d *engine.ModelDesc) []int     { return []int{d.KVHeads * d.HeadDim} }
func head(d *engine.ModelDesc) []int        { return []int{d.HeadDim} }
func attnOut(d *engine.ModelDesc) []int     { return []int{d.Heads * d.HeadDim, d.Hidden} }
func ffnIn(d *engine.ModelDesc) []int       { return []int{d.Hidden, d.FFN} }
func ffnOut(d *engine.ModelDesc) []int      { return []int{d.FFN, d.Hidden} }

var modelParts = map[string]part{
	embeddingName:        {engine.RoleEmbedding, vocabulary, always},
	"output_norm.weight": {engine.RoleOutputNorm, hidden, always},
	"output.weight":      {engine.RoleOutput, vocabulary, optional},
	"rope_freqs.weight":  {engine.RoleRopeFactors, ropeFactors, optional},
}

// layerParts are named blk.N. and the key.
var layerParts = map[string]part{
	"attn_norm.weight":   {engine.RoleAttnNorm, hidden, always},
	"attn_q.weight":      {engine.RoleQ, query, always},
	"attn_k.weight":      {engine.RoleK, keyValue, always},
	"attn_v.weight":      {engine.RoleV, keyValue, always},
	"attn_output.weight": {engine.RoleO, attnOut, always},
	"ffn_norm.weight":    {engine.RoleFFNNorm, hidden, always},
	"ffn_gate.weight":    {engine.RoleGate, ffnIn, always},
	"ffn_up.weight":      {engine.RoleUp, ffnIn, always},
	"ffn_down.weight":    {engine.RoleDown, ffnOut, always},
	"attn_q.bias":        {engine.RoleQBias, queryBias, withQKVBias},
	"attn_k.bias":        {engine.RoleKBias, keyBias, withQKVBias},
	"attn_v.bias":        {engine.RoleVBias, keyBias, withQKVBias},
	"attn_output.bias":   {engine.RoleOBias, hidden, withOBias},
	"attn_q_norm.weight": {engine.RoleQNorm, head, withQKNorm},
	"attn_k_norm.weight": {engine.RoleKNorm, head, withQKNorm},
}

// harmless are tensors of old files that hold only what the hyperparameters say anyway.
var harmless = []string{"attn_rot_embd.weight"}

// weightTypes are the types that engines run matrices in. Norms, biases and factors are F32.
var weightTypes = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL,
}

type place struct {
	role  engine.Role
	layer int
}

// bind gives every tensor of f its role, sets what the presence of tensors says about the shape, and checks that the
// model is whole.
func (m *Model) bind(f *gguf.File, fam family) error {
	d := &m.Desc
	_, hasHead := f.Tensor("output.weight")
	_, d.RopeFactors = f.Tensor("rope_freqs.weight")
	_, d.QKVBias = f.Tensor("blk.0.attn_q.bias")
	_, d.OBias = f.Tensor("blk.0.attn_output.bias")
	d.TiedHead = !hasHead
	d.QKVBias = d.QKVBias || fam.needQKVBias

	bound := map[place]bool{}
	for _, t := range f.Tensors() {
		p, layer, err := find(t.Name, d)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		if err := check(t, p, d); err != nil {
			return err
		}
		if p.role == engine.RoleRopeFactors {
			if err := checkRopeFactors(f, t); err != nil {
				return err
			}
		}
		dims := make([]int64, len(t.Dims))
		for i, n := range t.Dims {
			dims[i] = int64(n)
		}
		bound[place{p.role, layer}] = true
		m.Bindings = append(m.Bindings, Binding{t, engine.TensorDesc{Role: p.role, Layer: layer, Type: engine.Type(t.Type), Dims: dims}})
		m.Parameters += t.Elements()
		m.Bytes += t.Size
	}
	return whole(bound, d)
}

// find returns the part a tensor is and its layer, -1 outside the layers; nil for a harmless one.
func find(name string, d *engine.ModelDesc) (*part, int, error) {
	if p, ok := modelParts[name]; ok {
		return &p, -1, nil
	}
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		number, suffix, _ := strings.Cut(rest, ".")
		layer, err := strconv.Atoi(number)
		if err != nil || strconv.Itoa(layer) != number || layer < 0 || layer >= d.Layers {
			return nil, 0, invalid("tensor %s is of no layer from 0 to %d", name, d.Layers-1)
		}
		p, ok := layerParts[suffix]
		switch {
		case ok && p.need.met(d):
			return &p, layer, nil
		case slices.Contains(harmless, suffix):
			return nil, layer, nil
		}
	}
	return nil, 0, unsupported("tensor %s has no role in this architecture", name)
}

// check compares type and dimensions of a tensor with what its part has.
func check(t gguf.Tensor, p *part, d *engine.ModelDesc) error {
	want := p.dims(d)
	same := len(want) == len(t.Dims)
	for i := 0; same && i < len(want); i++ {
		same = t.Dims[i] == uint64(want[i])
	}
	switch {
	case !same:
		return invalid("tensor %s has dimensions %v, want %v", t.Name, t.Dims, want)
	case len(want) == 1 && t.Type != gguf.F32:
		return typeError(t, "F32")
	case !slices.Contains(weightTypes, t.Type):
		return typeError(t, weightTypes)
	}
	return nil
}

// whole checks that no part is missing.
func whole(bound map[place]bool, d *engine.ModelDesc) error {
	for _, name := range sortedNames(modelParts) {
		if p := modelParts[name]; p.need.met(d) && !bound[place{p.role, -1}] {
			return invalid("tensor %s is missing", name)
		}
	}
	names := sortedNames(layerParts)
	for layer := range d.Layers {
		for _, name := range names {
			if p := layerParts[name]; p.need.met(d) && !bound[place{p.role, layer}] {
				return invalid("tensor blk.%d.%s is missing", layer, name)
			}
		}
	}
	return nil
}
