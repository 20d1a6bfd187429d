package synth

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/gpuworker/engine"
)

// ErrShape means that no model of the shape can be written. The message says why.
var ErrShape = errors.New("impossible model shape")

// Shape is a decoder to write.
type Shape struct {
	Name         string // general.name
	Architecture string // with Desc llama, qwen2 or qwen3

	// Desc gives the sizes. Layers, Hidden, Heads, FFN and Vocab are needed. Zero means: KVHeads =
	// Heads, HeadDim = Hidden/Heads, RopeDims = HeadDim, Context = 16384, RopeBase = 10000,
	// RopeScale = 1, NormEps = 1e-5. RopeStyle, and for qwen2 QKVBias and for qwen3 QKNorm, follow
	// from the architecture. RopeFactors writes the factors of Llama 3, for a context extended 8 times
	// from 8192 positions.
	Desc engine.Uniform

	// Family replaces Desc for architectures whose layers are not those of a Uniform.
	Family *Family
}

var shapes = []Shape{
	{"llama-0.1b", "llama", engine.Uniform{Layers: 12, Hidden: 768, Heads: 12, KVHeads: 12, FFN: 2048, Vocab: 32000}, nil},
	{"llama-1b", "llama", engine.Uniform{Layers: 16, Hidden: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Vocab: 128256,
		Context: 131072, RopeBase: 500000, RopeFactors: true, TiedHead: true}, nil},
	{"qwen2-1.5b", "qwen2", engine.Uniform{Layers: 28, Hidden: 1536, Heads: 12, KVHeads: 2, HeadDim: 128, FFN: 8960, Vocab: 151936,
		Context: 32768, RopeBase: 1e6, NormEps: 1e-6, TiedHead: true}, nil},
	{"llama-8b", "llama", engine.Uniform{Layers: 32, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336, Vocab: 128256,
		Context: 131072, RopeBase: 500000, RopeFactors: true}, nil},
	{"qwen3-8b", "qwen3", engine.Uniform{Layers: 36, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 12288, Vocab: 151936,
		Context: 40960, RopeBase: 1e6, NormEps: 1e-6}, nil},
	{"llama-70b", "llama", engine.Uniform{Layers: 80, Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, FFN: 28672, Vocab: 128256,
		Context: 131072, RopeBase: 500000, RopeFactors: true}, nil},
}

// Names lists the shapes that Lookup knows: those of a Uniform first, each part by size.
func Names() []string {
	var names []string
	for _, s := range slices.Concat(shapes, published) {
		names = append(names, s.Name)
	}
	return names
}

// Lookup returns the shape of that name.
func Lookup(name string) (Shape, bool) {
	for _, s := range slices.Concat(shapes, published) {
		if s.Name == name {
			return s, true
		}
	}
	return Shape{}, false
}

// complete returns the description with all defaults filled in, or an error that wraps ErrShape.
func (s Shape) complete() (engine.Uniform, error) {
	d := s.Desc
	for _, size := range []struct {
		name  string
		value int
	}{{"layers", d.Layers}, {"hidden", d.Hidden}, {"heads", d.Heads}, {"ffn", d.FFN}, {"vocab", d.Vocab}} {
		if size.value <= 0 {
			return d, fmt.Errorf("%s is %d, want at least 1: %w", size.name, size.value, ErrShape)
		}
	}
	preset(&d.KVHeads, d.Heads)
	preset(&d.HeadDim, d.Hidden/d.Heads)
	preset(&d.RopeDims, d.HeadDim)
	preset(&d.Context, 16384)
	preset(&d.RopeBase, 10000)
	preset(&d.RopeScale, 1)
	preset(&d.NormEps, 1e-5)
	switch {
	case s.Desc.HeadDim == 0 && d.Hidden%d.Heads != 0:
		return d, fmt.Errorf("width %d is not divisible by %d heads: %w", d.Hidden, d.Heads, ErrShape)
	case d.KVHeads < 0 || d.Heads%d.KVHeads != 0:
		return d, fmt.Errorf("%d heads do not share %d key-value heads evenly: %w", d.Heads, d.KVHeads, ErrShape)
	case d.RopeDims <= 0 || d.RopeDims%2 != 0 || d.RopeDims > d.HeadDim:
		return d, fmt.Errorf("rope over %d of %d dimensions: %w", d.RopeDims, d.HeadDim, ErrShape)
	}
	switch s.Architecture {
	case "llama":
		d.RopeStyle = engine.RopeNorm
	case "qwen2":
		d.RopeStyle, d.QKVBias = engine.RopeNeox, true
	case "qwen3":
		d.RopeStyle, d.QKNorm = engine.RopeNeox, true
	default:
		return d, fmt.Errorf("architecture %q, want llama, qwen2 or qwen3: %w", s.Architecture, ErrShape)
	}
	if d.QKNorm != (s.Architecture == "qwen3") {
		return d, fmt.Errorf("head norms in %s: %w", s.Architecture, ErrShape)
	}
	return d, nil
}

func preset[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
