package reference

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// latent returns the branch of attention over a latent, for the normed rows h of n tokens. Unlike
// engines it makes the keys and values of every head from the latent.
func (s *Sequence) latent(layer int, h []float64, n int) []float64 {
	d, m := s.d, &s.d.desc.Layers[layer].Mixer
	var q []float64
	if m.QueryLatent == 0 {
		q = d.project(h, n, engine.RoleQ, false, 0, layer)
	} else {
		c := d.project(h, n, engine.RoleQDown, false, 0, layer)
		for i := range n {
			d.normLatent(c[i*m.QueryLatent:(i+1)*m.QueryLatent], engine.RoleQLatentNorm, layer)
		}
		q = d.project(c, n, engine.RoleQUp, false, 0, layer)
	}
	rope := &d.desc.Ropes[m.Rope]
	plain := m.KeyDim - rope.Dims
	for i := range n * m.Heads {
		part := q[i*m.KeyDim+plain : (i+1)*m.KeyDim]
		copy(part, Rotate(part, rope, float64(s.length+i/m.Heads)))
	}
	s.expand(layer, h, n)
	scale := float64(m.Scale)
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(m.KeyDim))
	}
	out := make([]float64, 0, n*m.Heads*m.ValueDim)
	for i := range n * m.Heads {
		head := i % m.Heads
		out = append(out, Attention(q[i*m.KeyDim:(i+1)*m.KeyDim], s.length+i/m.Heads+1,
			func(p int) []float64 { return s.keys[layer][p][head*m.KeyDim:] },
			func(p int) []float64 { return s.values[layer][p][head*m.ValueDim : (head+1)*m.ValueDim] },
			scale, 0, NoSink)...)
	}
	return d.project(out, n, engine.RoleO, false, 0, layer)
}

// expand appends the keys and values that all heads make of the latents of n tokens.
func (s *Sequence) expand(layer int, h []float64, n int) {
	d, m := s.d, &s.d.desc.Layers[layer].Mixer
	rope := &d.desc.Ropes[m.Rope]
	width, plain := m.Latent+rope.Dims, m.KeyDim-rope.Dims
	kUp, vUp := d.tensors[name{engine.RoleKUp, layer}], d.tensors[name{engine.RoleVUp, layer}]
	rows := d.project(h, n, engine.RoleKVDown, false, 0, layer)
	for i := range n {
		row := rows[i*width : (i+1)*width]
		c := row[:m.Latent]
		d.normLatent(c, engine.RoleKVLatentNorm, layer)
		rotated := Rotate(row[m.Latent:], rope, float64(s.length+i))
		var keys, values []float64
		for head := range m.Heads {
			key := make([]float64, plain)
			for j := range c { // the matrix of a head goes from the parts that are not rotated to the latent
				for k, w := range kUp[(head*m.Latent+j)*plain : (head*m.Latent+j+1)*plain] {
					key[k] += w * c[j]
				}
			}
			keys = append(append(keys, key...), rotated...)
			values = append(values, Matmul(vUp[head*m.ValueDim*m.Latent:(head+1)*m.ValueDim*m.Latent], c, 1, m.ValueDim, m.Latent)...)
		}
		s.keys[layer] = append(s.keys[layer], keys)
		s.values[layer] = append(s.values[layer], values)
	}
}

func (d *Decoder) normLatent(c []float64, role engine.Role, layer int) {
	copy(c, RMSNorm(c, d.tensors[name{role, layer}], float64(d.desc.NormEps)))
}
