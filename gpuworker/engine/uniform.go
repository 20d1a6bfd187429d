package engine

import "math"

// Uniform describes a decoder whose layers are all alike: a norm, attention, a norm and SwiGLU.
// Tests, benchmarks and the self-check build their models from it. It is comparable.
type Uniform struct {
	Layers, Hidden, Heads, KVHeads, HeadDim, FFN, Vocab int
	Context                                             int // largest position + 1
	RopeDims                                            int // rotated leading dims of a head; even; 0 = none
	RopeStyle                                           RopeStyle
	RopeBase                                            float32 // theta
	RopeScale                                           float32 // positions are divided by it; 1 = none
	NormEps                                             float32
	AttnScale                                           float32 // 0 = 1/sqrt(HeadDim)
	QKVBias, OBias, QKNorm, TiedHead                    bool
	RopeFactors                                         bool // frequencies have the divisors of Llama 3
}

// Model returns the description.
func (u Uniform) Model() ModelDesc {
	rope := Rope{Dims: u.RopeDims, Style: u.RopeStyle, Base: u.RopeBase, Scale: u.RopeScale}
	if u.RopeFactors {
		rope.Divisors = Llama3Divisors(u.RopeBase, u.RopeDims, 8, 8192)
	}
	layer := Layer{
		Mixer: Mixer{
			Kind: MixAttention, Heads: u.Heads, KVHeads: u.KVHeads, KeyDim: u.HeadDim, ValueDim: u.HeadDim, Scale: u.AttnScale,
			QKVBias: u.QKVBias, OutBias: u.OBias, QKNorm: u.QKNorm,
		},
		MLP: MLP{Kind: MLPDense, Width: u.FFN},
	}
	d := ModelDesc{
		Hidden: u.Hidden, Vocab: u.Vocab, Context: u.Context, NormEps: u.NormEps, TiedHead: u.TiedHead, Ropes: []Rope{rope},
	}
	for range u.Layers {
		d.Layers = append(d.Layers, layer)
	}
	return d
}

// Llama3Divisors returns the divisors of a context that is extended by a factor from `original`
// positions, as Llama 3.1 defines them: 1 for wavelengths below a quarter of the original context,
// the factor for those above it, and a blend between. Each is rounded to float32, as files store
// it.
func Llama3Divisors(base float32, dims int, factor, original float64) []float64 {
	const low, high = 1.0, 4.0
	out := make([]float64, dims/2)
	for i := range out {
		wavelength := 2 * math.Pi * math.Pow(float64(base), 2*float64(i)/float64(dims))
		smooth := min(1, max(0, (original/wavelength-low)/(high-low)))
		out[i] = float64(float32(1 / ((1-smooth)/factor + smooth)))
	}
	return out
}
