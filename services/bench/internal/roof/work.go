package roof

import (
	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
)

// Work is what tokens cost in one model.
type Work struct {
	token  Ops // of one position through all layers
	sample Ops // of the head for one position
}

// WorkOf counts the matrix weights of a model. The embedding is looked up by row and counts only where it is the head
// too.
func WorkOf(m *arch.Model) Work {
	var w Work
	for _, b := range m.Bindings {
		if len(b.Desc.Dims) != 2 {
			continue
		}
		ops := 2 * float64(b.Desc.Dims[0]) * float64(b.Desc.Dims[1])
		switch kind := kindOf(b.Desc.Type); b.Desc.Role {
		case engine.RoleOutput:
			w.sample[kind] += ops
		case engine.RoleEmbedding:
			if m.Desc.TiedHead {
				w.sample[kind] += ops
			}
		default:
			w.token[kind] += ops
		}
	}
	return w
}

// OnGPU is the work as a GPU does it: weights of every type are multiplied as f16 or bf16, at one rate.
func (w Work) OnGPU() Work {
	var out Work
	out.token[BF16], out.sample[BF16] = w.token.Sum(), w.sample.Sum()
	return out
}

func kindOf(t engine.Type) Kind {
	switch t {
	case engine.BF16:
		return BF16
	case engine.F32, engine.F16:
		return F32
	default:
		return Int8
	}
}

// Ops is what so many positions cost, of which so many are sampled.
func (w Work) Ops(positions, samples int) Ops {
	var o Ops
	for k := range o {
		o[k] = w.token[k]*float64(positions) + w.sample[k]*float64(samples)
	}
	return o
}
