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
	engine.Q2_K: {256, 84}, engine.Q3_K: {256, 110}, engine.IQ4XS: {256, 136},
	engine.IQ2XXS: {256, 66}, engine.IQ2XS: {256, 74}, engine.IQ2S: {256, 82}, engine.IQ3XXS: {256, 98}, engine.IQ3S: {256, 110},
	engine.Q4_K: {256, 144}, engine.Q5_K: {256, 176}, engine.Q6_K: {256, 210}, engine.IQ4NL: {32, 18}, engine.MXFP4: {32, 17}, engine.NVFP4: {64, 36},
}

// WeightTypes are the types that an engine may run, in the order of their ids.
func WeightTypes() []engine.Type {
	return []engine.Type{
		engine.F32, engine.F16, engine.Q4_0, engine.Q4_1, engine.Q5_0, engine.Q5_1, engine.Q8_0,
		engine.Q2_K, engine.Q3_K, engine.Q4_K, engine.Q5_K, engine.Q6_K,
		engine.IQ2XXS, engine.IQ2XS, engine.IQ3XXS, engine.IQ4NL, engine.IQ3S, engine.IQ2S, engine.IQ4XS, engine.BF16, engine.MXFP4, engine.NVFP4,
	}
}

// BlockOf returns the layout of a type. ok is false for a type that no engine runs.
func BlockOf(t engine.Type) (b Block, ok bool) {
	b, ok = blocks[t]
	return b, ok
}

// TensorSize returns the bytes of a tensor in a file, or ErrInvalid if there is no such tensor.
func TensorSize(d engine.TensorDesc) (uint64, error) {
	block, ok := blocks[d.Type]
	switch {
	case !ok:
		return 0, fmt.Errorf("tensor type %d: %w", d.Type, engine.ErrUnsupported)
	case len(d.Dims) < 1 || len(d.Dims) > 3:
		return 0, fmt.Errorf("%s has %d dims, want 1 to 3: %w", Name(d.Role, d.Layer), len(d.Dims), engine.ErrInvalid)
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

// Name returns the name of a tensor in messages, such as "layer 3 gate".
func Name(role engine.Role, layer int) string {
	if layer >= 0 {
		return fmt.Sprintf("layer %d %v", layer, role)
	}
	return role.String()
}
