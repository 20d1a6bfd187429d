package arch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// harmless stands for the role of tensors of old files that hold only what the hyperparameters say anyway.
const harmless engine.Role = -1

var harmlessNames = []string{"attn_rot_embd.weight"}

// weightTypes are the types that engines run matrices in.
var weightTypes = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL,
}

// vectorTypes are the types of norms, biases and factors. Engines take them as F32 alone; see Binding.Widens.
var vectorTypes = []gguf.Type{gguf.F32, gguf.F16, gguf.BF16}

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
		role, layer, err := find(t.Name, d)
		if err != nil {
			return err
		}
		if role == harmless {
			continue
		}
		dims, err := check(t, role, d)
		if err != nil {
			return err
		}
		if role == engine.RoleRopeFactors {
			if err := checkRopeFactors(f, t); err != nil {
				return err
			}
		}
		bound[place{role, layer}] = true
		typ := engine.Type(t.Type)
		if role.Vector() {
			typ = engine.F32
		}
		m.Bindings = append(m.Bindings, Binding{t, engine.TensorDesc{Role: role, Layer: layer, Type: typ, Dims: dims}})
		m.Parameters += t.Elements()
		m.Bytes += t.Size
	}
	return whole(bound, d)
}

// find returns the role of a tensor and its layer, -1 outside the layers.
func find(name string, d *engine.ModelDesc) (engine.Role, int, error) {
	if role := slices.Index(fileNames[:], name); role >= 0 && !engine.Role(role).InLayer() {
		return engine.Role(role), -1, nil
	}
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		number, suffix, _ := strings.Cut(rest, ".")
		layer, err := strconv.Atoi(number)
		if err != nil || strconv.Itoa(layer) != number || layer < 0 || layer >= d.Layers {
			return 0, 0, invalid("tensor %s is of no layer from 0 to %d", name, d.Layers-1)
		}
		role := engine.Role(slices.Index(fileNames[:], suffix))
		switch {
		case role >= 0 && role.InLayer() && role.Of(*d):
			return role, layer, nil
		case slices.Contains(harmlessNames, suffix):
			return harmless, layer, nil
		}
	}
	return 0, 0, unsupported("tensor %s has no role in this architecture", name)
}

// check compares type and dimensions of a tensor with what its role has, and returns these.
func check(t gguf.Tensor, role engine.Role, d *engine.ModelDesc) ([]int64, error) {
	want := role.Dims(*d)
	same := true
	for i := range max(len(want), len(t.Dims)) { // dimensions of 1 at the end may be there or not
		same = same && dim(t.Dims, i) == uint64(dim(want, i))
	}
	types := weightTypes
	if role.Vector() {
		types = vectorTypes
	}
	switch {
	case !same:
		return nil, invalid("tensor %s has dimensions %v, want %v", t.Name, t.Dims, want)
	case !slices.Contains(types, t.Type):
		return nil, typeError(t, types)
	}
	return want, nil
}

// dim returns dimension i, which is 1 beyond those that are given.
func dim[T int64 | uint64](dims []T, i int) T {
	if i < len(dims) {
		return dims[i]
	}
	return 1
}

// whole checks that no tensor is missing.
func whole(bound map[place]bool, d *engine.ModelDesc) error {
	for role := range engine.RoleCount {
		if !role.InLayer() && role.Of(*d) && !bound[place{role, -1}] {
			return invalid("tensor %s is missing", TensorName(role, -1))
		}
	}
	for layer := range d.Layers {
		for role := range engine.RoleCount {
			if role.InLayer() && role.Of(*d) && !bound[place{role, layer}] {
				return invalid("tensor %s is missing", TensorName(role, layer))
			}
		}
	}
	return nil
}
