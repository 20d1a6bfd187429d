package enginetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
	"github.com/millrace/millrace/gpuworker/engine/rules"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// generator is a seeded source: the same seed gives the same numbers everywhere.
func generator(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6d696c6c72616365)) }

// Random makes a model of a shape with random weights. typeOf gives the type of a matrix; vectors
// are F32. Weights are scaled by 1/sqrt(in), so that activations keep their size through the
// layers.
func Random(desc engine.ModelDesc, typeOf func(engine.Role) engine.Type, seed uint64) *reference.Weights {
	return randomOf(desc, typeOf, func(engine.Role) float64 { return 1 }, seed)
}

// largeActivations makes a model whose products of gate and up reach a million, which f16 cannot
// hold, as some of real models do not fit it either.
func largeActivations(desc engine.ModelDesc, weights engine.Type, seed uint64) *reference.Weights {
	return randomOf(desc, all(weights), func(role engine.Role) float64 {
		switch role {
		case engine.RoleGate:
			return 200
		case engine.RoleUp:
			return 500
		default:
			return 1
		}
	}, seed)
}

// randomOf is Random with weights `gainOf` times as large.
func randomOf(desc engine.ModelDesc, typeOf func(engine.Role) engine.Type, gainOf func(engine.Role) float64, seed uint64) *reference.Weights {
	rng := generator(seed)
	w := &reference.Weights{Desc: desc}
	for _, want := range rules.Tensors(&desc) {
		t := reference.Tensor{TensorDesc: engine.TensorDesc{Role: want.Role, Layer: want.Layer, Type: engine.F32, Dims: want.Dims}}
		if want.F32 {
			t.Bytes = randomVector(rng, want.Role, t.Elements())
		} else {
			t.Type = typeOf(want.Role)
			gain := gainOf(want.Role)
			if want.Role == engine.RoleEmbedding && desc.TiedHead {
				gain = 2 // as a head: logits that are worth comparing
			}
			rows := t.Elements() / int(want.Dims[0])
			t.Bytes = RandomMatrix(rng, t.Type, int(want.Dims[0]), rows, gain/math.Sqrt(float64(want.Dims[0])))
		}
		w.Tensors = append(w.Tensors, t)
	}
	return w
}

func randomVector(rng *rand.Rand, role engine.Role, n int) []byte {
	out := make([]byte, 0, 4*n)
	for range n {
		v := rng.NormFloat64() * 0.1 // biases, sinks, and the router of a shared expert
		switch role {
		case engine.RoleMixConv:
			v *= 5
		case engine.RoleDeltaA:
			v = -0.01 - 4*rng.Float64()*rng.Float64()
		case engine.RoleDeltaDT:
			v = v*10 - 2
		case engine.RoleQBias, engine.RoleKBias, engine.RoleVBias, engine.RoleOBias, engine.RoleChoiceBias, engine.RoleSharedRouter, engine.RoleRouterBias,
			engine.RoleExpertGateBias, engine.RoleExpertUpBias, engine.RoleExpertDownBias, engine.RoleSinks:
		default:
			v += 1 // norms
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return out
}

// scaleFields are the halves of a block that are scales, and the bits behind them are random:
// offset in the block, and the spread of a weight when that half is 1. A second half of a type with
// minimums shifts weights to about mean zero.
var scaleFields = map[engine.Type]struct {
	scale, min int // offsets; min -1 = none
	spread     float64
	shift      float64 // min half / scale half
}{
	engine.Q4_0: {0, -1, 4.6, 0}, engine.Q4_1: {0, 2, 4.6, -7.5}, engine.Q5_0: {0, -1, 9.2, 0}, engine.Q5_1: {0, 2, 9.2, -15.5},
	engine.Q8_0: {0, -1, 74, 0}, engine.IQ4NL: {0, -1, 70, 0}, engine.Q4_K: {0, 2, 240, 7.5}, engine.Q5_K: {0, 2, 500, 15.5},
	engine.Q6_K: {208, -1, 1360, 0}, engine.Q2_K: {80, 82, 13.9, 1.5}, engine.Q3_K: {108, -1, 43, 0}, engine.IQ4XS: {0, -1, 1250, 0},
	engine.IQ2XXS: {0, -1, 53, 0}, engine.IQ2XS: {0, -1, 56, 0}, engine.IQ2S: {0, -1, 56, 0}, engine.IQ3XXS: {0, -1, 142, 0}, engine.IQ3S: {0, -1, 140, 0},
}

// RandomMatrix makes the file bytes of rows*in weights whose standard deviation is about spread.
// Every bit pattern of the quantised numbers occurs, and the scales differ from block to block.
func RandomMatrix(rng *rand.Rand, t engine.Type, in, rows int, spread float64) []byte {
	block, ok := rules.BlockOf(t)
	if !ok || in%int(block.Elements) != 0 {
		panic(fmt.Sprintf("enginetest: no matrix of type %d with rows of %d", t, in))
	}
	n := in * rows
	out := make([]byte, 0, uint64(n)/block.Elements*block.Bytes+8)
	if block.Elements == 1 {
		for range n {
			bits := math.Float32bits(float32(rng.NormFloat64() * spread))
			switch t {
			case engine.F32:
				out = binary.LittleEndian.AppendUint32(out, bits)
			case engine.BF16:
				out = binary.LittleEndian.AppendUint16(out, uint16(bits>>16))
			default:
				out = binary.LittleEndian.AppendUint16(out, half(math.Float32frombits(bits)))
			}
		}
		return out
	}
	out = out[:uint64(n)/block.Elements*block.Bytes]
	for i := 0; i+8 <= cap(out); i += 8 {
		binary.LittleEndian.PutUint64(out[i:i+8:cap(out)], rng.Uint64())
	}
	if t == engine.MXFP4 {
		for at := 0; at < len(out); at += int(block.Bytes) { // exponents; a weight is 2.9 times the power on average
			out[at] = byte(127 + int(math.Round(math.Log2(spread/2.9))) - rng.IntN(2))
		}
		return out
	}
	if t == engine.NVFP4 {
		for at := 0; at < len(out); at += int(block.Bytes) { // an eighth more for each scale
			for i := range 4 {
				out[at+i] = byte(max(1, 8*(6.5+math.Log2(spread/2.9)))) + byte(rng.IntN(8))
			}
		}
		return out
	}
	field := scaleFields[t]
	for at := 0; at < len(out); at += int(block.Bytes) {
		scale := spread / field.spread * (0.5 + rng.Float64())
		binary.LittleEndian.PutUint16(out[at+field.scale:], half(float32(scale)))
		if field.min >= 0 {
			binary.LittleEndian.PutUint16(out[at+field.min:], half(float32(scale*field.shift*(0.8+0.4*rng.Float64()))))
		}
	}
	return out
}

// half is the nearest half-precision number below 65504, toward zero for subnormal results.
func half(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	exponent := int(bits>>23&0xff) - 127 + 15
	mantissa := bits & 0x7fffff
	if exponent <= 0 {
		if exponent < -10 {
			return sign
		}
		return sign | uint16((mantissa|0x800000)>>(14-exponent))
	}
	return sign + uint16(uint32(exponent)<<10+(mantissa+0x1000)>>13)
}

// FromFile reads a whole model file into memory.
func FromFile(path string) (*reference.Weights, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	m, err := arch.Parse(f)
	if err != nil {
		return nil, err
	}
	w := &reference.Weights{Desc: m.Desc}
	for _, b := range m.Bindings {
		t := reference.Tensor{TensorDesc: b.Desc, Bytes: make([]byte, b.Bytes())}
		if err := b.ReadAt(f, t.Bytes, 0); err != nil {
			return nil, err
		}
		w.Tensors = append(w.Tensors, t)
	}
	return w, nil
}
