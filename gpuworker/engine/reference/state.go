package reference

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// state holds the numbers that a layer carries from one position to the next.
type state struct {
	inputs [][]float64 // of the convolution: those of the last positions, oldest first
	s      []float64   // of MixDelta: (heads, key dim, value dim)
}

func newState(m *engine.Mixer, hidden int) state {
	st := state{s: make([]float64, m.Heads*m.KeyDim*m.ValueDim)}
	for range m.Conv - 1 {
		st.inputs = append(st.inputs, make([]float64, m.Channels(hidden)))
	}
	return st
}

// convolve returns the convolution of the input of a position and of those before it. taps has
// those of each column, the oldest first.
func (st *state) convolve(input, taps []float64) []float64 {
	st.inputs = append(st.inputs, input)
	n := len(st.inputs)
	out := make([]float64, len(input))
	for c := range out {
		for i := range n {
			out[c] += taps[c*n+i] * st.inputs[i][c]
		}
	}
	st.inputs = st.inputs[1:]
	return out
}

// Softplus returns log(1 + exp(a)).
func Softplus(a float64) float64 { return max(a, 0) + math.Log1p(math.Exp(-math.Abs(a))) }

// leastSquares is added to the sum of squares by which queries and keys are divided.
const leastSquares = 1e-6

// unit returns a vector of length 1.
func unit(a []float64) []float64 {
	sum := leastSquares
	for _, v := range a {
		sum += v * v
	}
	out := make([]float64, len(a))
	for i, v := range a {
		out[i] = v / math.Sqrt(sum)
	}
	return out
}

// DeltaStep is a position of one head of the gated delta rule. s is (key dim, value dim).
func DeltaStep(s, q, k, v []float64, decay, beta float64) (out []float64) {
	n := len(v)
	for i := range s {
		s[i] *= decay
	}
	remembered := make([]float64, n)
	for i := range k {
		for j := range n {
			remembered[j] += k[i] * s[i*n+j]
		}
	}
	out = make([]float64, n)
	for i := range k {
		for j := range n {
			s[i*n+j] += k[i] * beta * (v[j] - remembered[j])
			out[j] += q[i] * s[i*n+j]
		}
	}
	return out
}

// stateful returns the branch of a layer that carries a state, for the normed rows h of n tokens.
func (s *Sequence) stateful(layer int, h []float64, n int) []float64 {
	m := &s.d.desc.Layers[layer].Mixer
	if s.states[layer].inputs == nil {
		s.states[layer] = newState(m, s.d.desc.Hidden)
	}
	in := s.d.project(h, n, engine.RoleMixIn, false, 0, layer)
	rows := s.delta
	if m.Kind == engine.MixConv {
		rows = s.shortConvolution
	}
	return s.d.project(rows(layer, h, in, n), n, engine.RoleMixOut, false, 0, layer)
}

func (s *Sequence) shortConvolution(layer int, _, in []float64, n int) (out []float64) {
	hidden, taps := s.d.desc.Hidden, s.d.tensors[name{engine.RoleMixConv, layer}]
	for i := range n {
		row := in[i*3*hidden : (i+1)*3*hidden]
		product := make([]float64, hidden)
		for c := range product {
			product[c] = row[c] * row[2*hidden+c]
		}
		for c, v := range s.states[layer].convolve(product, taps) {
			out = append(out, row[hidden+c]*v)
		}
	}
	return out
}

func (s *Sequence) delta(layer int, h, in []float64, n int) (out []float64) {
	d, m, st := s.d, &s.d.desc.Layers[layer].Mixer, &s.states[layer]
	of := func(role engine.Role) []float64 { return d.tensors[name{role, layer}] }
	gates := d.project(h, n, engine.RoleMixGate, false, 0, layer)
	betas := d.project(h, n, engine.RoleDeltaBeta, false, 0, layer)
	alphas := d.project(h, n, engine.RoleDeltaAlpha, false, 0, layer)
	scale := float64(m.Scale)
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(m.KeyDim))
	}
	width, keys := m.Channels(d.desc.Hidden), m.KVHeads*m.KeyDim
	for i := range n {
		u := st.convolve(in[i*width:(i+1)*width], of(engine.RoleMixConv))
		for c := range u {
			u[c] = SiLU(u[c])
		}
		for head := range m.Heads {
			group := head / (m.Heads / m.KVHeads)
			if m.TiledHeads {
				group = head % m.KVHeads
			}
			q, k := unit(u[group*m.KeyDim:(group+1)*m.KeyDim]), unit(u[keys+group*m.KeyDim:keys+(group+1)*m.KeyDim])
			for j := range q {
				q[j] *= scale
			}
			at := i*m.Heads + head
			decay := math.Exp(of(engine.RoleDeltaA)[head] * Softplus(alphas[at]+of(engine.RoleDeltaDT)[head]))
			size := m.KeyDim * m.ValueDim
			values := u[2*keys+head*m.ValueDim : 2*keys+(head+1)*m.ValueDim]
			o := DeltaStep(st.s[head*size:(head+1)*size], q, k, values, decay, Sigmoid(betas[at]))
			o = RMSNorm(o, of(engine.RoleDeltaNorm), float64(d.desc.NormEps))
			for j, v := range o {
				out = append(out, v*SiLU(gates[at*m.ValueDim+j]))
			}
		}
	}
	return out
}
