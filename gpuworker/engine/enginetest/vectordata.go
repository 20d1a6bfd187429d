package enginetest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// shape is the shape of a job's rows, which makes them hard.
type shape struct {
	name string
	// value is element j of row i.
	value func(r *rand.Rand, i, j int) float64
}

// shapes of rows. Values that an element type cannot hold are rounded, or wrapped for integers.
var rowShapes = []shape{
	{"gaussian", func(r *rand.Rand, _, _ int) float64 { return r.NormFloat64() }},
	{"ties", func(r *rand.Rand, _, _ int) float64 { return float64(r.IntN(3)) }},
	{"duplicates", func(_ *rand.Rand, i, j int) float64 { return float64((i%5*7+j*3)%11) - 4 }},
	{"all equal", func(_ *rand.Rand, _, j int) float64 { return float64(j) + 0.5 }},
	{"zeros", func(*rand.Rand, int, int) float64 { return 0 }},
	{"far from 0", func(r *rand.Rand, _, _ int) float64 { return 1e6 + r.NormFloat64() }},
	{"all lengths", func(r *rand.Rand, i, _ int) float64 { return r.NormFloat64() * math.Pow(10, float64(i%7)-3) }},
	{"subnormal", func(r *rand.Rand, _, _ int) float64 { return float64(r.IntN(200)-100) * 0x1p-149 }},
	{"columns apart", func(r *rand.Rand, _, j int) float64 { return r.NormFloat64() * math.Pow(2, float64(j%40)-20) }},
	{"clusters", func(r *rand.Rand, i, j int) float64 { return float64((i*2654435761>>7)%9*j%13) + r.NormFloat64()/8 }},
	{"largest", func(r *rand.Rand, _, _ int) float64 { return (2*r.Float64() - 1) * math.MaxFloat32 }},
}

// rowsOf returns rows of a shape as bytes of an element type. Values that are too large for an F16
// are scaled down.
func rowsOf(s shape, r *rand.Rand, element, codeword engine.Element, rows, dimension int) []byte {
	out := make([]float64, 0, rows*dimension)
	for i := range rows {
		for j := range dimension {
			v := s.value(r, i, j)
			switch element {
			case engine.VectorU8:
				out = append(out, float64(uint8(int64(math.Mod(v*16, 256)))))
				continue
			case engine.VectorI8:
				out = append(out, float64(int8(int64(math.Mod(v*16, 256)))))
				continue
			default:
			}
			if element == engine.VectorF16 || codeword == engine.VectorF16 {
				for math.Abs(v) > 60000 {
					v /= 1024
				}
			}
			if codeword == engine.VectorBF16 {
				v = vq.Round(engine.VectorBF16, v) // so that the largest of them is one of its values
			}
			out = append(out, vq.Round(element, v))
		}
	}
	return vq.Encode(element, out)
}

// with replaces an element of a floating-point type by a NaN or an infinity.
func with(rows []byte, element engine.Element, at int, v float64) []byte {
	out := append([]byte(nil), rows...)
	bits := math.Float32bits(float32(v))
	switch element {
	case engine.VectorF32:
		binary.LittleEndian.PutUint32(out[4*at:], bits)
	case engine.VectorBF16:
		binary.LittleEndian.PutUint16(out[2*at:], uint16(bits>>16))
	default:
		half := uint16(bits>>16)&0x8000 | 0x7c00
		if math.IsNaN(v) {
			half |= 1
		}
		binary.LittleEndian.PutUint16(out[2*at:], half)
	}
	return out
}
