package arch

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/gpuworker/gguf"
)

const (
	// maxSize bounds every count and width, so that products of two stay far inside an int.
	maxSize = 1 << 24
	// maxLayers bounds the memory of a description.
	maxLayers = 4096
	// Real models are far inside these bounds: bases of 500 to 4e9, positions stretched up to 64
	// times, and head products scaled by 1/16 to 1.
	maxRopeBase  = 1e12
	maxRopeScale = 1e4
	maxAttnScale = 1e4
	// maxInputWidth and maxHeadDim are those of the engines. Gemma 4 has 256 and 512. A head's width
	// also bounds the divisors of its rotation, of which the file need not have a tensor.
	maxInputWidth = 1 << 16
	maxHeadDim    = 4096
)

// reader reads metadata under an architecture's prefix and keeps the first error.
type reader struct {
	file   *gguf.File
	meta   *gguf.Metadata
	prefix string
	err    error
	read   map[string]bool // keys that the family implements

	fused   fusion          // tensors of the family that hold several roles
	unused  map[string]bool // names of tensors that engines do not need, such as those whose numbers are in the description
	skipped int             // layers of the file after the last of the description, whose tensors engines do not need

	headless  bool // layers without key-value heads carry a state
	sharpYarn bool // the borders of YaRN are not rounded to whole frequencies

	latentYarn  bool    // YaRN multiplies scores, and cosines and sines not
	scoreFactor float64 // by this; 0 = 1

	short *shortRope   // nil: one list of divisors for all contexts
	dense []DenseShape // layers after the pooling
}

// fuse declares tensors that hold several roles.
func (r *reader) fuse(tensors ...fusion) {
	for _, f := range tensors {
		if r.fused == nil {
			r.fused = fusion{}
		}
		maps.Copy(r.fused, f)
	}
}

// ignore declares a tensor that engines do not need.
func (r *reader) ignore(tensor string) {
	if r.unused == nil {
		r.unused = map[string]bool{}
	}
	r.unused[tensor] = true
}

// key returns the whole key and notes that the family implements it, whatever its value.
func (r *reader) key(key string) string {
	key = r.prefix + key
	if r.read == nil {
		r.read = map[string]bool{}
	}
	r.read[key] = true
	return key
}

// size returns an integer from 1 to maxSize. If the key is absent it returns preset, or an error if
// preset is 0.
func (r *reader) size(key string, preset int) int { return r.bounded(key, preset, maxSize) }

// bounded is size with another bound.
func (r *reader) bounded(key string, preset, most int) int {
	key = r.key(key)
	if r.err != nil {
		return 1
	}
	v, ok, err := r.meta.Uint(key)
	switch {
	case err != nil:
		r.err = err
	case !ok && preset == 0:
		r.err = invalid("metadata %s is missing", key)
	case !ok:
		return preset
	case v == 0 || v > uint64(most):
		r.err = invalid("metadata %s is %d, want 1 to %d", key, v, most)
	default:
		return int(v)
	}
	return 1
}

// count returns an integer from 0 to most, 0 if the key is absent.
func (r *reader) count(key string, most int) int {
	key = r.key(key)
	v, _, err := r.meta.Uint(key)
	switch {
	case err != nil:
		r.fail(err)
	case v > uint64(most):
		r.fail(invalid("metadata %s is %d, want at most %d", key, v, most))
	default:
		return int(v)
	}
	return 0
}

// each returns an integer from 1 to maxSize for each of n layers: those of an array, or one for all.
// If the key is absent it returns presets, or an error if they are nil.
func (r *reader) each(key string, n int, presets []int) []int {
	if v, ok := r.meta.Value(r.prefix + key); !ok && presets != nil || ok && v.Type == gguf.Array {
		return r.eachOf(r.key(key), n, presets)
	}
	return slices.Repeat([]int{r.size(key, 0)}, n)
}

func (r *reader) eachOf(key string, n int, presets []int) []int {
	out := slices.Repeat([]int{1}, n)
	values, ok, err := r.meta.Ints(key)
	switch {
	case r.err != nil:
	case err != nil:
		r.err = err
	case !ok:
		return presets
	case len(values) != n:
		r.err = invalid("metadata %s has %d values, want one for each of %d layers", key, len(values), n)
	default:
		least := int64(1)
		if r.headless && strings.HasSuffix(key, ".head_count_kv") {
			least = 0
		}
		for i, v := range values {
			if v < least || v > maxSize {
				r.fail(invalid("metadata %s has %d for layer %d, want %d to %d", key, v, i, least, maxSize))
				return out
			}
			out[i] = int(v)
		}
	}
	return out
}

// positive returns a finite number above zero as float32. If the key is absent it returns preset,
// or an error if preset is 0.
func (r *reader) positive(key string, preset float32) float32 {
	key = r.key(key)
	if r.err != nil {
		return 1
	}
	v, ok, err := r.meta.Float(key)
	f := float32(v)
	switch {
	case err != nil:
		r.err = err
	case !ok && preset == 0:
		r.err = invalid("metadata %s is missing", key)
	case !ok:
		return preset
	case !(f > 0) || math.IsInf(float64(f), 0):
		r.err = invalid("metadata %s is %v, want a finite number above 0: the tool that wrote the file is at fault, "+
			"convert the model again or get it from elsewhere", key, v)
	default:
		return f
	}
	return 1
}

// within is positive with bounds, outside of which results would be infinite or NaN.
func (r *reader) within(key string, preset, least, most float32) float32 {
	f := r.positive(key, preset)
	if r.err == nil && (f < least || f > most) {
		r.err = invalid("metadata %s%s is %g, want %g to %g: the tool that wrote the file is at fault, convert the model again or get it from elsewhere",
			r.prefix, key, f, least, most)
	}
	return f
}

// has reports whether the key is present.
func (r *reader) has(key string) bool {
	_, ok := r.meta.Value(r.prefix + key)
	return ok
}

// hasTensor reports whether the file has a tensor.
func (r *reader) hasTensor(name string) bool {
	_, ok := r.file.Tensor(name)
	return ok
}

// fail keeps the error unless an earlier one is kept.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}
