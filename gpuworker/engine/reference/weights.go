package reference

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Tensor is a tensor of a file.
type Tensor struct {
	engine.TensorDesc
	Bytes []byte
}

// Elements returns the product of the dims.
func (t Tensor) Elements() int {
	n := int64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return int(n)
}

// Weights is a whole model in memory.
type Weights struct {
	Desc    engine.ModelDesc
	Tensors []Tensor
}

// Find returns the index of a tensor, or -1.
func (w *Weights) Find(role engine.Role, layer int) int {
	for i, t := range w.Tensors {
		if t.Role == role && t.Layer == layer {
			return i
		}
	}
	return -1
}

// Dequantize returns n weights of a type exactly.
func Dequantize(t engine.Type, raw []byte, n int) ([]float64, error) {
	out := make([]float64, n)
	if err := dequant.Dequantize(gguf.Type(t), raw, out); err != nil {
		return nil, fmt.Errorf("dequantise %d weights of type %d: %w", n, t, err)
	}
	return out, nil
}
