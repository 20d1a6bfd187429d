package reference

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

type name struct {
	role  engine.Role
	layer int
}

// Decoder is a model in float64. It is immutable, so any number of sequences may use it at once.
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

// Sequence has the keys and values of one sequence.
type Sequence struct {
	d            *Decoder
	keys, values [][][]float64 // layer, position, kv heads * head dim; of a latent those of all heads
	states       []state       // by layer
	length       int
}

// NewSequence returns an empty sequence.
func (d *Decoder) NewSequence() *Sequence {
	n := len(d.desc.Layers)
	return &Sequence{d: d, keys: make([][][]float64, n), values: make([][][]float64, n), states: make([]state, n)}
}

// Behind returns a sequence whose first n positions have keys and values of other sequences. `of`
// returns the source of each: a sequence and a position, whose rotation the key keeps. No layer
// carries a state.
func (d *Decoder) Behind(n int, of func(position int) (*Sequence, int)) *Sequence {
	s := d.NewSequence()
	for i := range n {
		from, at := of(i)
		for layer := range s.keys {
			if d.desc.Layers[layer].Mixer.KVLayer == 0 {
				s.keys[layer] = append(s.keys[layer], from.keys[layer][at])
				s.values[layer] = append(s.values[layer], from.values[layer][at])
			}
		}
	}
	s.length = n
	return s
}

// Append runs tokens at the next positions and returns the logits of each: (tokens, vocab).
func (s *Sequence) Append(tokens []int32) [][]float64 {
	return s.d.logits(s.Hidden(tokens), len(tokens))
}

// Hidden runs tokens at the next positions and returns the hidden state of each behind the last
// layer and the output norm: tokens * hidden numbers. If a layer sees later positions, the tokens are
// a whole text.
func (s *Sequence) Hidden(tokens []int32) []float64 {
	d, n := &s.d.desc, len(tokens)
	embedding := s.d.tensors[name{engine.RoleEmbedding, -1}]
	x := make([]float64, 0, n*d.Hidden) // (tokens, hidden), the residual stream
	for _, token := range tokens {
		x = append(x, embedding[int(token)*d.Hidden:(int(token)+1)*d.Hidden]...)
	}
	scaleBy(x, d.EmbeddingScale)
	inputs := s.d.layerInputs(tokens, x)
	for layer := range d.Layers {
		l := &d.Layers[layer]
		h := s.d.norm(x, !l.Mixer.NoNorm, engine.RoleAttnNorm, layer)
		mix := s.stateful
		switch l.Mixer.Kind {
		case engine.MixAttention:
			mix = s.attention
		case engine.MixLatent:
			mix = s.latent
		case engine.MixDelta, engine.MixConv:
		}
		s.d.add(x, mix(layer, h, n), l.Mixer.EndNorm, engine.RoleAttnEndNorm, layer)
		s.d.add(x, s.d.feedForward(layer, x, n), l.MLP.EndNorm, engine.RoleFFNEndNorm, layer)
		if inputs != nil {
			s.d.add(x, s.d.inputBranch(layer, x, inputs[layer]), true, engine.RoleLayerInputEndNorm, layer)
		}
		if l.OutputScale {
			scaleBy(x, float32(s.d.tensors[name{engine.RoleLayerScale, layer}][0]))
		}
	}
	s.length += n
	return s.d.norm(x, true, engine.RoleOutputNorm, -1)
}

// logits multiplies n hidden states by the head.
func (d *Decoder) logits(hidden []float64, n int) [][]float64 {
	role, vocab := engine.RoleOutput, d.desc.Vocab
	if d.desc.TiedHead {
		role = engine.RoleEmbedding
	}
	flat := Matmul(d.tensors[name{role, -1}], hidden, n, vocab, d.desc.Hidden)
	scaleBy(flat, d.desc.LogitScale)
	for i, v := range flat {
		flat[i] = Cap(v, float64(d.desc.LogitCap))
	}
	logits := make([][]float64, n)
	for i := range logits {
		logits[i] = flat[i*vocab : (i+1)*vocab]
	}
	return logits
}

// norm normalises every row of x(tokens, hidden), or returns x if the branch has no norm.
func (d *Decoder) norm(x []float64, has bool, role engine.Role, layer int) []float64 {
	if !has {
		return x
	}
	weight := d.tensors[name{role, layer}]
	out := make([]float64, 0, len(x))
	for i := 0; i < len(x); i += d.desc.Hidden {
		out = append(out, RMSNorm(x[i:i+d.desc.Hidden], weight, float64(d.desc.NormEps))...)
	}
	return out
}

// add adds the output of a branch to the residual stream, after its end norm, if it has one, and
// the residual scale.
func (d *Decoder) add(x, branch []float64, endNorm bool, role engine.Role, layer int) {
	branch = d.norm(branch, endNorm, role, layer)
	scaleBy(branch, d.desc.ResidualScale)
	addTo(x, branch)
}

// project multiplies h(n, in) by a matrix of the layer and adds its bias, if the model has one.
func (d *Decoder) project(h []float64, n int, role engine.Role, hasBias bool, bias engine.Role, layer int) []float64 {
	dims := role.Dims(&d.desc, layer)
	in, out := int(dims[0]), int(dims[1])
	y := Matmul(d.tensors[name{role, layer}], h, n, out, in)
	if hasBias {
		for i := range n {
			addTo(y[i*out:(i+1)*out], d.tensors[name{bias, layer}])
		}
	}
	return y
}

// heads rotates every head of rows(n, count*width), after a norm if the layer has one. Q is then
// multiplied by the temperature of its position. first is the position of the first row.
func (d *Decoder) heads(rows []float64, n, count, first int, role engine.Role, layer int) {
	m := &d.desc.Layers[layer].Mixer
	width, eps, weight := m.KeyDim, float64(d.desc.NormEps), d.tensors[name{role, layer}]
	for i := range n {
		row := rows[i*count*width : (i+1)*count*width]
		if m.QKRowNorm {
			copy(row, RMSNorm(row, weight, eps))
		}
		for h := range count {
			head := row[h*width : (h+1)*width]
			if m.QKNorm {
				copy(head, RMSNorm(head, weight, eps))
			}
			if m.Rope != engine.NoRope {
				copy(head, Rotate(head, &d.desc.Ropes[m.Rope], float64(first+i)))
			}
			if role == engine.RoleQNorm && m.TemperatureLength != 0 {
				factor := Temperature(m, first+i)
				for j := range head {
					head[j] *= factor
				}
			}
		}
	}
}

func (s *Sequence) attention(layer int, h []float64, n int) []float64 {
	m := &s.d.desc.Layers[layer].Mixer
	q := s.d.project(h, n, engine.RoleQ, m.QKVBias, engine.RoleQBias, layer)
	var gates []float64
	if m.OutGate {
		q, gates = separate(q, m.KeyDim)
	}
	s.d.heads(q, n, m.Heads, s.length, engine.RoleQNorm, layer)
	if m.KVLayer == 0 {
		s.store(layer, h, n)
	}
	keys, values := s.keys[layer-m.KVLayer], s.values[layer-m.KVLayer]
	scale := float64(m.Scale)
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(m.KeyDim))
	}
	out := make([]float64, 0, n*m.Heads*m.ValueDim)
	for i := range n {
		position, first := s.length+i, 0
		end := position + 1
		if m.Bidirectional {
			end = s.length + n
		}
		if m.Window > 0 {
			first, end = max(0, position-m.Window+1), min(end, position+m.Window)
		}
		for head := range m.Heads {
			at, group := (i*m.Heads+head)*m.KeyDim, head/(m.Heads/m.KVHeads)
			out = append(out, Attention(q[at:at+m.KeyDim], end-first,
				func(p int) []float64 { return keys[first+p][group*m.KeyDim:] },
				func(p int) []float64 { return values[first+p][group*m.ValueDim : (group+1)*m.ValueDim] },
				scale, float64(m.ScoreCap), s.d.sink(layer, head))...)
		}
	}
	for i, gate := range gates {
		out[i] *= Sigmoid(gate)
	}
	return s.d.project(out, n, engine.RoleO, m.OutBias, engine.RoleOBias, layer)
}

// separate returns the even and the odd runs of `width` numbers.
func separate(rows []float64, width int) (even, odd []float64) {
	for at := 0; at < len(rows); at += 2 * width {
		even = append(even, rows[at:at+width]...)
		odd = append(odd, rows[at+width:at+2*width]...)
	}
	return even, odd
}

// sink returns the sink of a head.
func (d *Decoder) sink(layer, head int) float64 {
	if !d.desc.Layers[layer].Mixer.Sinks {
		return NoSink
	}
	return d.tensors[name{engine.RoleSinks, layer}][head]
}

// store appends the keys and values of n tokens.
func (s *Sequence) store(layer int, h []float64, n int) {
	m := &s.d.desc.Layers[layer].Mixer
	k := s.d.project(h, n, engine.RoleK, m.QKVBias, engine.RoleKBias, layer)
	var v []float64
	if m.ValueIsKey {
		v = slices.Clone(k)
	} else {
		v = s.d.project(h, n, engine.RoleV, m.QKVBias, engine.RoleVBias, layer)
	}
	s.d.heads(k, n, m.KVHeads, s.length, engine.RoleKNorm, layer)
	if m.VNorm {
		ones := slices.Repeat([]float64{1}, m.ValueDim)
		for i := 0; i < len(v); i += m.ValueDim {
			copy(v[i:], RMSNorm(v[i:i+m.ValueDim], ones, float64(s.d.desc.NormEps)))
		}
	}
	for i := range n {
		s.keys[layer] = append(s.keys[layer], k[i*m.KVHeads*m.KeyDim:(i+1)*m.KVHeads*m.KeyDim])
		s.values[layer] = append(s.values[layer], v[i*m.KVHeads*m.ValueDim:(i+1)*m.KVHeads*m.ValueDim])
	}
}

// feedForward returns the MLP's branch of n rows of the residual stream x.
func (d *Decoder) feedForward(layer int, x []float64, n int) []float64 {
	m := &d.desc.Layers[layer].MLP
	h := d.norm(x, !m.NoNorm, engine.RoleFFNNorm, layer)
	switch {
	case m.Kind == engine.MLPExperts && m.Experts.Apart:
		return d.mixtureApart(layer, x, h, n)
	case m.Kind == engine.MLPExperts:
		return d.mixture(layer, h, n)
	}
	gate := d.project(h, n, engine.RoleGate, false, 0, layer)
	up := d.project(h, n, engine.RoleUp, false, 0, layer)
	d.gated(layer, gate, up)
	return d.project(gate, n, engine.RoleDown, false, 0, layer)
}

// layerInputs returns the inputs of each layer, (tokens, width), from the embeddings x of tokens. nil
// = none.
func (d *Decoder) layerInputs(tokens []int32, x []float64) [][]float64 {
	width, layers, n := d.desc.LayerInputWidth, len(d.desc.Layers), len(tokens)
	if width == 0 {
		return nil
	}
	all := width * layers
	projected := Matmul(d.tensors[name{engine.RoleLayerInputProjection, -1}], x, n, all, d.desc.Hidden)
	embedding, weight := d.tensors[name{engine.RoleLayerInputEmbedding, -1}], d.tensors[name{engine.RoleLayerInputNorm, -1}]
	inputs := make([][]float64, layers)
	for i, token := range tokens {
		for layer := range layers {
			slice := projected[i*all+layer*width : i*all+(layer+1)*width]
			for j := range slice {
				slice[j] /= math.Sqrt(float64(d.desc.Hidden))
			}
			row := embedding[int(token)*all+layer*width:]
			for j, v := range RMSNorm(slice, weight, float64(d.desc.NormEps)) {
				inputs[layer] = append(inputs[layer], (v+math.Sqrt(float64(width))*row[j])/math.Sqrt2)
			}
		}
	}
	return inputs
}

// inputBranch returns the branch of a layer's input before its norm.
func (d *Decoder) inputBranch(layer int, x, input []float64) []float64 {
	n := len(x) / d.desc.Hidden
	gate := d.project(x, n, engine.RoleLayerInputGate, false, 0, layer)
	d.gated(layer, gate, input)
	return d.project(gate, n, engine.RoleLayerInputDown, false, 0, layer)
}

// gated computes activation(gate) * up in place of gate.
func (d *Decoder) gated(layer int, gate, up []float64) {
	for i := range gate {
		switch d.desc.Layers[layer].MLP.Activation {
		case engine.GELUTanh:
			gate[i] = GELUTanh(gate[i]) * up[i]
		case engine.ClampedSwish:
			gate[i] = ClampedSwish(gate[i]) * (1 + max(-7, min(up[i], 7)))
		default:
			gate[i] = SiLU(gate[i]) * up[i]
		}
	}
}

func addTo(x, y []float64) {
	for i, v := range y {
		x[i] += v
	}
}

// scaleBy multiplies every number by a factor; 0 means 1.
func scaleBy(x []float64, factor float32) {
	if factor == 0 {
		return
	}
	for i := range x {
		x[i] *= float64(factor)
	}
}
