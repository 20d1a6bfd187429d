package arch

import (
	"fmt"

	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// Dense is a layer after the pooling, which multiplies the vector of a text. Like the head of a
// reranker it has no role, because the worker multiplies by it and not the engine.
type Dense struct {
	In, Out int
	Rows    []float32 // Out rows of In
}

// DenseShape is a tensor of a layer after the pooling.
type DenseShape struct {
	Name    string
	In, Out int
}

// maxDense bounds the weights of a dense layer. Those of EmbeddingGemma have 768 * 3072.
const maxDense = 1 << 23

// denseLayers reads the widths of the dense layers that the keys state, and declares their tensors.
func (r *reader) denseLayers(width int) {
	key := r.prefix + "embedding_length" // has the width
	for _, layer := range []string{"dense_2", "dense_3"} {
		in, out := r.count(layer+"_feat_in", maxSize), r.count(layer+"_feat_out", maxSize)
		switch {
		case in == 0 && out == 0 || r.err != nil:
			continue
		case in != width:
			r.fail(invalid("metadata %s%s_feat_in is %d, want %d, which %s is", r.prefix, layer, in, width, key))
			continue
		case out == 0 || out > maxDense/in:
			r.fail(invalid("metadata %s%s_feat_out is %d, want 1 to %d", r.prefix, layer, out, maxDense/in))
			continue
		}
		shape := DenseShape{layer + ".weight", in, out}
		r.dense = append(r.dense, shape)
		r.ignore(shape.Name)
		width, key = out, r.prefix+layer+"_feat_out"
	}
}

// readDense reads the weights of the dense layers.
func (r *reader) readDense() (layers []Dense, err error) {
	for _, shape := range r.dense {
		rows, err := r.floats(shape.Name, int64(shape.In), int64(shape.Out))
		if err != nil {
			return nil, err
		}
		layers = append(layers, Dense{shape.In, shape.Out, rows})
	}
	return layers, nil
}

// floats reads the weights of a matrix.
func (r *reader) floats(name string, dims ...int64) ([]float32, error) {
	t, ok := r.file.Tensor(name)
	if !ok {
		return nil, invalid("tensor %s is missing", name)
	}
	if err := check(t, dims, weightTypes); err != nil {
		return nil, err
	}
	raw, values := make([]byte, t.Size), make([]float64, t.Elements())
	if err := r.file.ReadAt(t, raw, 0); err != nil {
		return nil, err
	}
	if err := dequant.Dequantize(t.Type, raw, values); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", name, err)
	}
	out := make([]float32, len(values))
	for i, v := range values {
		out[i] = float32(v)
	}
	return out, nil
}

// VectorWidth is the width of the vectors that the model makes of texts.
func (m *Model) VectorWidth() int {
	if n := len(m.Dense); n > 0 {
		return m.Dense[n-1].Out
	}
	return m.Desc.Hidden
}
