package modeltest

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/gguf/dequant"
)

// lattice encodes weights of an IQ2 or IQ3 type.
type lattice struct {
	typ      gguf.Type
	weights  int     // of an entry: 8 or 4
	part     int     // weights of a scale: 32 or 16
	unit     float64 // a weight is d * (scale + 1/2) * unit * magnitude
	even     bool    // seven bits stand for eight signs
	closest  []uint16
	computed sync.Once
}

var (
	lattice2XXS = &lattice{typ: gguf.IQ2XXS, weights: 8, part: 32, unit: 0.25, even: true}
	lattice2XS  = &lattice{typ: gguf.IQ2XS, weights: 8, part: 16, unit: 0.25, even: true}
	lattice2S   = &lattice{typ: gguf.IQ2S, weights: 8, part: 16, unit: 0.25}
	lattice3XXS = &lattice{typ: gguf.IQ3XXS, weights: 4, part: 32, unit: 0.5, even: true}
	lattice3S   = &lattice{typ: gguf.IQ3S, weights: 4, part: 32, unit: 2}
)

// code is a block of 256 weights.
type code struct {
	d       []byte // a half
	scales  []int  // of four bits
	indices []int
	signs   []byte // of eight weights each
}

// encode rounds each weight to the nearest magnitude, and the magnitudes of an entry to the nearest
// entry. The best entry for the weights themselves would be up to 1024 distances away, for each
// eight weights.
func (l *lattice) encode(w []float64) code {
	entries, values := dequant.Lattice(l.typ)
	l.computed.Do(func() { l.closest = closest(entries, values, l.weights) })
	top := float64(values[len(values)-1])
	steps := make([]float64, len(w)/l.part)
	for i := range steps {
		steps[i] = math.Abs(extreme(w[i*l.part:(i+1)*l.part])) / top
	}
	var c code
	var d float64
	c.d, d = appendHalf(nil, extreme(steps)/(15.5*l.unit))
	for _, s := range steps {
		c.scales = append(c.scales, level(s/(d*l.unit)-0.5, 0, 15))
	}
	for i := 0; i < len(w); i += l.weights {
		step := d * (float64(c.scales[i/l.part]) + 0.5) * l.unit
		key := 0
		for j := l.weights - 1; j >= 0; j-- {
			key = key*len(values) + place(math.Abs(w[i+j])/step, values)
		}
		c.indices = append(c.indices, int(l.closest[key]))
	}
	for i := 0; i < len(w); i += 8 {
		c.signs = append(c.signs, signsOf(w[i:i+8], l.even))
	}
	return c
}

// place returns the index of the value nearest to v.
func place(v float64, values []int) int {
	i := 0
	for i+1 < len(values) && 2*v > float64(values[i]+values[i+1]) {
		i++
	}
	return i
}

// signsOf returns a bit for each of eight weights. If an even number must be set, the smallest
// weight may get the other sign.
func signsOf(w []float64, even bool) byte {
	var signs byte
	odd, least := false, 0
	for i, v := range w {
		if v < 0 {
			signs |= 1 << i
			odd = !odd
		}
		if math.Abs(v) < math.Abs(w[least]) {
			least = i
		}
	}
	if even && odd {
		signs ^= 1 << least
	}
	return signs
}

// closest returns, for every combination of magnitudes, the index of the nearest entry. The digits
// of a combination are places among the values, that of the first weight the lowest.
func closest(entries []uint16, values []int, weights int) []uint16 {
	bits := 2
	if weights == 4 {
		bits = 3
	}
	points := make([][8]int, len(entries))
	for i, entry := range entries {
		for j := range weights {
			points[i][j] = values[int(entry)>>(bits*j)&(1<<bits-1)]
		}
	}
	n := 1
	for range weights {
		n *= len(values)
	}
	out := make([]uint16, n)
	for key := range out {
		var at [8]int
		for j, rest := 0, key; j < weights; j, rest = j+1, rest/len(values) {
			at[j] = values[rest%len(values)]
		}
		best := math.MaxInt
		for i := range points {
			distance := 0
			for j, v := range at {
				distance += (v - points[i][j]) * (v - points[i][j])
			}
			if distance < best {
				best, out[key] = distance, uint16(i)
			}
		}
	}
	return out
}

// words returns a word for each 32 weights: four times seven bits of signs, four bits of scale.
func (c code) word(sub int) uint32 {
	word := uint32(c.scales[sub]) << 28
	for l, signs := range c.signs[4*sub : 4*sub+4] {
		word |= uint32(signs&127) << (7 * l)
	}
	return word
}

// nibbles appends integers of four bits, the low half of a byte first.
func nibbles(b []byte, values []int) []byte {
	for i := 0; i < len(values); i += 2 {
		b = append(b, byte(values[i]|values[i+1]<<4))
	}
	return b
}

// lowAndHigh appends the low eight bits of each index, then middle, then the bits above, a byte for
// the indices of each 32 weights.
func (c code) lowAndHigh(b, middle []byte, bits int) []byte {
	per := 8 / bits
	high := make([]byte, len(c.indices)/per)
	for i, index := range c.indices {
		b = append(b, byte(index))
		high[i/per] |= byte(index >> 8 << (i % per * bits))
	}
	return append(append(b, middle...), high...)
}

func iq2xxs(b []byte, w []float64) []byte {
	c := lattice2XXS.encode(w)
	b = append(b, c.d...)
	for sub := range 8 {
		for _, index := range c.indices[4*sub : 4*sub+4] {
			b = append(b, byte(index))
		}
		b = binary.LittleEndian.AppendUint32(b, c.word(sub))
	}
	return b
}

func iq2xs(b []byte, w []float64) []byte {
	c := lattice2XS.encode(w)
	b = append(b, c.d...)
	for i, index := range c.indices {
		b = binary.LittleEndian.AppendUint16(b, uint16(index)|uint16(c.signs[i]&127)<<9)
	}
	return nibbles(b, c.scales)
}

func iq2s(b []byte, w []float64) []byte {
	c := lattice2S.encode(w)
	return nibbles(c.lowAndHigh(append(b, c.d...), c.signs, 2), c.scales)
}

func iq3xxs(b []byte, w []float64) []byte {
	c := lattice3XXS.encode(w)
	b = append(b, c.d...)
	for _, index := range c.indices {
		b = append(b, byte(index))
	}
	for sub := range 8 {
		b = binary.LittleEndian.AppendUint32(b, c.word(sub))
	}
	return b
}

func iq3s(b []byte, w []float64) []byte {
	c := lattice3S.encode(w)
	return nibbles(append(c.lowAndHigh(append(b, c.d...), nil, 1), c.signs...), c.scales)
}
