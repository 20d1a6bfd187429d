package reference

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

type name struct {
	role  engine.Role
	layer int
}

// Decoder is a model in float64. It is immutable: any number of sequences may use it at once.
type Decoder struct {
	desc    engine.ModelDesc
	tensors map[name][]float64
}

// NewDecoder dequantises every tensor: 8 bytes a weight.
func NewDecoder(w *Weights) (*Decoder, error) {
	d := &Decoder{desc: w.Desc, tensors: map[name][]float64{}}
	for _, t := range w.Tensors {
		values, err := Dequantize(t.Type, t.Bytes, t.Elements())
		if err != nil {
			return nil, fmt.Errorf("role %d layer %d: %w", t.Role, t.Layer, err)
		}
		d.tensors[name{t.Role, t.Layer}] = values
	}
	return d, nil
}

// Sequence is the keys and values of one sequence.
type Sequence struct {
	d            *Decoder
	keys, values [][][]float64 // layer, position, kv heads * head dim
	length       int
}

// NewSequence begins at position 0.
func (d *Decoder) NewSequence() *Sequence {
	return &Sequence{d: d, keys: make([][][]float64, d.desc.Layers), values: make([][][]float64, d.desc.Layers)}
}

// Behind begins a sequence whose first n positions have the keys and values that `of` gives for each: a sequence and a position of it,
// whose rotation they keep.
func (d *Decoder) Behind(n int, of func(position int) (*Sequence, int)) *Sequence {
	s := d.NewSequence()
	for i := range n {
		from, at := of(i)
		for layer := range s.keys {
			s.keys[layer] = append(s.keys[layer], from.keys[layer][at])
			s.values[layer] = append(s.values[layer], from.values[layer][at])
		}
	}
	s.length = n
	return s
}

// Append runs tokens at the next positions and returns the logits of each: (tokens, vocab).
func (s *Sequence) Append(tokens []int32) [][]float64 {
	d, n := &s.d.desc, len(tokens)
	embedding := s.d.tensors[name{engine.RoleEmbedding, -1}]
	x := make([]float64, 0, n*d.Hidden) // (tokens, hidden), the residual stream
	for _, token := range tokens {
		x = append(x, embedding[int(token)*d.Hidden:(int(token)+1)*d.Hidden]...)
	}
	for layer := range d.Layers {
		addTo(x, s.attention(layer, s.d.norm(x, engine.RoleAttnNorm, layer), n))
		addTo(x, s.d.feedForward(layer, s.d.norm(x, engine.RoleFFNNorm, layer), n))
	}
	s.length += n
	head := embedding
	if !d.TiedHead {
		head = s.d.tensors[name{engine.RoleOutput, -1}]
	}
	flat := Matmul(head, s.d.norm(x, engine.RoleOutputNorm, -1), n, d.Vocab, d.Hidden)
	logits := make([][]float64, n)
	for i := range logits {
		logits[i] = flat[i*d.Vocab : (i+1)*d.Vocab]
	}
	return logits
}

// norm of every row of x(tokens, hidden).
func (d *Decoder) norm(x []float64, role engine.Role, layer int) []float64 {
	weight := d.tensors[name{role, layer}]
	out := make([]float64, 0, len(x))
	for i := 0; i < len(x); i += d.desc.Hidden {
		out = append(out, RMSNorm(x[i:i+d.desc.Hidden], weight, float64(d.desc.NormEps))...)
	}
	return out
}

// project multiplies h(n, in) by a matrix of the layer and adds its bias where the model has one.
func (d *Decoder) project(h []float64, n, in, out int, role engine.Role, hasBias bool, bias engine.Role, layer int) []float64 {
	y := Matmul(d.tensors[name{role, layer}], h, n, out, in)
	if hasBias {
		for i := range n {
			addTo(y[i*out:(i+1)*out], d.tensors[name{bias, layer}])
		}
	}
	return y
}

// heads norms (where the model does) and rotates every head of rows(n, count*head dim), whose first position is first.
func (d *Decoder) heads(rows []float64, n, count, first int, role engine.Role, layer int) {
	width := d.desc.HeadDim
	for i := range n * count {
		head := rows[i*width : (i+1)*width]
		if d.desc.QKNorm {
			copy(head, RMSNorm(head, d.tensors[name{role, layer}], float64(d.desc.NormEps)))
		}
		var factors []float64
		if d.desc.RopeFactors {
			factors = d.tensors[name{engine.RoleRopeFactors, -1}]
		}
		copy(head, Rope(head, d.desc.RopeDims, d.desc.RopeStyle, float64(first+i/count), float64(d.desc.RopeBase),
			float64(d.desc.RopeScale), factors))
	}
}

func (s *Sequence) attention(layer int, h []float64, n int) []float64 {
	d := &s.d.desc
	width, kvWidth := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	q := s.d.project(h, n, d.Hidden, width, engine.RoleQ, d.QKVBias, engine.RoleQBias, layer)
	k := s.d.project(h, n, d.Hidden, kvWidth, engine.RoleK, d.QKVBias, engine.RoleKBias, layer)
	v := s.d.project(h, n, d.Hidden, kvWidth, engine.RoleV, d.QKVBias, engine.RoleVBias, layer)
	s.d.heads(q, n, d.Heads, s.length, engine.RoleQNorm, layer)
	s.d.heads(k, n, d.KVHeads, s.length, engine.RoleKNorm, layer)
	for i := range n {
		s.keys[layer] = append(s.keys[layer], k[i*kvWidth:(i+1)*kvWidth])
		s.values[layer] = append(s.values[layer], v[i*kvWidth:(i+1)*kvWidth])
	}
	scale := float64(d.AttnScale)
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(d.HeadDim))
	}
	out := make([]float64, n*width)
	for i := range n {
		for head := range d.Heads {
			at, kvAt := i*width+head*d.HeadDim, head/(d.Heads/d.KVHeads)*d.HeadDim
			copy(out[at:], Attention(q[at:at+d.HeadDim], s.length+i+1,
				func(p int) []float64 { return s.keys[layer][p][kvAt:] },
				func(p int) []float64 { return s.values[layer][p][kvAt:] }, scale))
		}
	}
	return s.d.project(out, n, width, d.Hidden, engine.RoleO, d.OBias, engine.RoleOBias, layer)
}

func (d *Decoder) feedForward(layer int, h []float64, n int) []float64 {
	gate := Matmul(d.tensors[name{engine.RoleGate, layer}], h, n, d.desc.FFN, d.desc.Hidden)
	up := Matmul(d.tensors[name{engine.RoleUp, layer}], h, n, d.desc.FFN, d.desc.Hidden)
	for i := range gate {
		gate[i] = SiLU(gate[i]) * up[i]
	}
	return Matmul(d.tensors[name{engine.RoleDown, layer}], gate, n, d.desc.Hidden, d.desc.FFN)
}

func addTo(x, y []float64) {
	for i, v := range y {
		x[i] += v
	}
}
