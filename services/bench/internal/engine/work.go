package engine

import (
	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/services/bench/internal/device"
)

// Work is the operations of a token in one model. A multiply-add counts two, and only matrix
// weights count: two for each weight and token, of experts only those that a token uses, of the head only for positions that are
// sampled.
type Work struct {
	token  device.Ops // of one position through all layers
	sample device.Ops // of the head for one position
}

// WorkOf counts the matrix weights of a model. The embedding is looked up by row and counts only if
// it is also the head.
func WorkOf(m *arch.Model) Work {
	var w Work
	for _, b := range m.Bindings {
		if len(b.Desc.Dims) < 2 {
			continue
		}
		ops := 2 * float64(b.Desc.Dims[0]) * float64(b.Desc.Dims[1])
		if len(b.Desc.Dims) == 3 {
			ops *= float64(m.Desc.Layers[b.Desc.Layer].MLP.Experts.Used)
		}
		switch kind := kindOf(b.Desc.Type); b.Desc.Role {
		case engine.RoleOutput:
			w.sample[kind] += ops
		case engine.RoleEmbedding:
			if m.Desc.TiedHead {
				w.sample[kind] += ops
			}
		case engine.RoleLayerInputEmbedding: // looked up by row
		default:
			w.token[kind] += ops
		}
	}
	return w
}

// OnGPU returns the work on a GPU, which multiplies weights of every type as f16 or bf16, at one
// rate.
func (w Work) OnGPU() Work {
	var out Work
	out.token[device.KindBF16], out.sample[device.KindBF16] = w.token.Sum(), w.sample.Sum()
	return out
}

func kindOf(t engine.Type) device.Kind {
	switch t {
	case engine.BF16:
		return device.KindBF16
	case engine.F32, engine.F16:
		return device.KindF32
	default:
		return device.KindInt8
	}
}

// Ops returns the operations of some positions, of which some are sampled.
func (w Work) Ops(positions, samples int) device.Ops {
	var o device.Ops
	for k := range o {
		o[k] = w.token[k]*float64(positions) + w.sample[k]*float64(samples)
	}
	return o
}
