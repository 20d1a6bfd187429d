package arch

import (
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// harmlessNames are the suffixes of tensors that an engine does not need: those of old files that
// repeat hyperparameters.
var harmlessNames = []string{"attn_rot_embd.weight"}

// weightTypes are the types that engines run matrices in.
var weightTypes = []gguf.Type{
	gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q2K, gguf.Q3K,
	gguf.Q4K, gguf.Q5K, gguf.Q6K, gguf.IQ4NL, gguf.IQ4XS,
	gguf.IQ3S, gguf.IQ3XXS, gguf.IQ2S, gguf.IQ2XS, gguf.IQ2XXS, gguf.MXFP4, gguf.NVFP4,
}

// vectorTypes are the types of norms, biases and factors. Engines take them as F32 alone; see
// Binding.Widens.
var vectorTypes = []gguf.Type{gguf.F32, gguf.F16, gguf.BF16}

type place struct {
	role  engine.Role
	layer int
}

// bind assigns roles to every tensor of the file that an engine needs, and checks that the model is
// complete.
func (m *Model) bind(r *reader) error {
	bound := map[place]string{}
	for _, t := range r.file.Tensors() {
		if m.isClassifier(t) {
			continue
		}
		roles, layer, err := r.find(t.Name, &m.Desc)
		if err != nil {
			return err
		}
		if len(roles) == 0 {
			continue
		}
		tensors, err := views(t, roles, &m.Desc, layer)
		if err != nil {
			return err
		}
		for i, role := range roles {
			if other, ok := bound[place{role, layer}]; ok {
				return invalid("tensor %s holds %v of layer %d, which tensor %s holds too", t.Name, role, layer, other)
			}
			bound[place{role, layer}] = t.Name
			b, err := binding(tensors[i], role, layer, &m.Desc)
			if err != nil {
				return err
			}
			b.File = t.Name
			m.Bindings = append(m.Bindings, b)
			m.Parameters += b.Tensor.Elements()
			m.Bytes += b.Tensor.Size
		}
	}
	return r.whole(bound, &m.Desc)
}

// binding binds a tensor, or a view of one, to a role.
func binding(t gguf.Tensor, role engine.Role, layer int, d *engine.ModelDesc) (Binding, error) {
	dims, types, typ := role.Dims(d, layer), weightTypes, engine.Type(t.Type)
	if role.Vector() {
		types, typ = vectorTypes, engine.F32
	}
	if err := check(t, dims, types); err != nil {
		return Binding{}, err
	}
	return Binding{Tensor: t, Desc: engine.TensorDesc{Role: role, Layer: layer, Type: typ, Dims: dims}}, nil
}

// find returns the roles of a tensor, none if an engine does not need it, and its layer, -1 outside
// the layers.
func (r *reader) find(name string, d *engine.ModelDesc) ([]engine.Role, int, error) {
	if role, ok := roleOf(name); ok && !role.InLayer() && role.Of(d, -1) {
		return []engine.Role{role}, -1, nil
	}
	if roles := r.fused[name]; len(roles) == 1 && !roles[0].InLayer() {
		return roles, -1, nil
	}
	if r.unused[name] {
		return nil, -1, nil
	}
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		number, suffix, _ := strings.Cut(rest, ".")
		layer, err := strconv.Atoi(number)
		if err != nil || strconv.Itoa(layer) != number || layer < 0 || layer >= len(d.Layers)+r.skipped {
			return nil, 0, invalid("tensor %s is of no layer from 0 to %d", name, len(d.Layers)+r.skipped-1)
		}
		if layer >= len(d.Layers) {
			return nil, layer, nil
		}
		if roles := r.fused.rolesOf(suffix, d, layer); roles != nil {
			return roles, layer, nil
		}
		if slices.Contains(harmlessNames, suffix) {
			return nil, layer, nil
		}
		if err := refuseSingleExpert(name, suffix); err != nil {
			return nil, 0, err
		}
	}
	if weight, ok := scaled(name); ok {
		return nil, 0, unsupported("tensor %s scales the products of %s, as in NVFP4 files converted from ModelOpt, which engines do not do: "+
			"take a file of another type, such as Q4_K_M", name, weight)
	}
	return nil, 0, unsupported("tensor %s has no role in this architecture", name)
}

// scaled returns the name of the matrix whose products, or their inputs, a tensor scales. llama.cpp
// multiplies each product by X.scale, one number or one for each expert, and by X.input_scale if it
// rounds inputs to four bits.
func scaled(name string) (weight string, ok bool) {
	for _, suffix := range []string{".input_scale", ".scale"} {
		if weight, ok := strings.CutSuffix(name, suffix); ok {
			return strings.TrimSuffix(weight, ".weight") + ".weight", true
		}
	}
	return "", false
}

// check compares type and dimensions of a tensor with those that it must have. Trailing dimensions
// of 1 are optional.
func check(t gguf.Tensor, want []int64, types []gguf.Type) error {
	switch {
	case !sameDims(t, want):
		return invalid("tensor %s has dimensions %v, want %v", t.Name, t.Dims, want)
	case !slices.Contains(types, t.Type):
		return typeError(t, types)
	}
	return nil
}

func sameDims(t gguf.Tensor, want []int64) bool {
	for i := range max(len(want), len(t.Dims)) {
		if dim(t.Dims, i) != uint64(dim(want, i)) {
			return false
		}
	}
	return true
}

// dim returns dimension i; missing ones are 1.
func dim[T int64 | uint64](dims []T, i int) T {
	if i < len(dims) {
		return dims[i]
	}
	return 1
}

// whole checks that no tensor is missing.
func (r *reader) whole(bound map[place]string, d *engine.ModelDesc) error {
	missing := func(inLayer bool, layer int) error {
		for role := range engine.RoleCount {
			if role.InLayer() == inLayer && role.Of(d, layer) && bound[place{role, layer}] == "" {
				return invalid("tensor %s is missing", r.fused.name(role, layer))
			}
		}
		return nil
	}
	if err := missing(false, -1); err != nil {
		return err
	}
	for layer := range d.Layers {
		if err := missing(true, layer); err != nil {
			return err
		}
	}
	return nil
}
