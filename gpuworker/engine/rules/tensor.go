package rules

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Block is the layout of a weight type: elements and bytes of one block.
type Block struct{ Elements, Bytes uint64 }

var blocks = map[engine.Type]Block{
	engine.F32: {1, 4}, engine.F16: {1, 2}, engine.BF16: {1, 2},
	engine.Q4_0: {32, 18}, engine.Q4_1: {32, 20}, engine.Q5_0: {32, 22}, engine.Q5_1: {32, 24}, engine.Q8_0: {32, 34},
	engine.Q4_K: {256, 144}, engine.Q5_K: {256, 176}, engine.Q6_K: {256, 210}, engine.IQ4NL: {32, 18},
}

// WeightTypes are the types an engine may run, in the order of their ids.
func WeightTypes() []engine.Type {
	return []engine.Type{
		engine.F32, engine.F16, engine.Q4_0, engine.Q4_1, engine.Q5_0, engine.Q5_1, engine.Q8_0,
		engine.Q4_K, engine.Q5_K, engine.Q6_K, engine.IQ4NL, engine.BF16,
	}
}

// BlockOf is the layout of a type; ok is false for a type that no engine runs.
func BlockOf(t engine.Type) (b Block, ok bool) {
	b, ok = blocks[t]
	return b, ok
}

// TensorSize is the bytes of a tensor in a file, or ErrInvalid when there is no such tensor.
func TensorSize(d engine.TensorDesc) (uint64, error) {
	block, ok := blocks[d.Type]
	switch {
	case !ok:
		return 0, fmt.Errorf("tensor type %d: %w", d.Type, engine.ErrUnsupported)
	case len(d.Dims) < 1 || len(d.Dims) > 2:
		return 0, fmt.Errorf("%s has %d dims, want 1 or 2: %w", Name(d.Role, d.Layer), len(d.Dims), engine.ErrInvalid)
	}
	elements := uint64(1)
	for _, n := range d.Dims {
		hi, lo := bits.Mul64(elements, uint64(max(n, 0)))
		if n < 1 || hi != 0 || lo > math.MaxInt64/8 {
			return 0, fmt.Errorf("%s has dims %v: %w", Name(d.Role, d.Layer), d.Dims, engine.ErrInvalid)
		}
		elements = lo
	}
	if uint64(d.Dims[0])%block.Elements != 0 {
		return 0, fmt.Errorf("%s has rows of %d elements, which are not whole blocks of %d: %w", Name(d.Role, d.Layer),
			d.Dims[0], block.Elements, engine.ErrInvalid)
	}
	return elements / block.Elements * block.Bytes, nil
}

// Name is what messages call a tensor, such as "layer 3 gate".
func Name(role engine.Role, layer int) string {
	if layer >= 0 {
		return fmt.Sprintf("layer %d %v", layer, role)
	}
	return role.String()
}
