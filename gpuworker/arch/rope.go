package arch

import (
	"math"

	"github.com/millrace/millrace/gpuworker/engine"
)

// Names of tensors with divisors of frequencies. The description has their numbers, so they have no
// role.
const (
	RopeFactorsName = "rope_freqs.weight"
	LongFactorsName = "rope_factors_long.weight"
	// ShortFactorsName is the name of the divisors of a model with LongRoPE that serves no more than
	// its original context.
	ShortFactorsName = "rope_factors_short.weight"
)

// rope reads the rotation of heads of `width` dims, and how the file stretches it over a context
// that is longer than the one of training. Every stretching is a divisor of each frequency and a
// magnitude, so engines have no part in it.
func (r *reader) rope(style engine.RopeStyle, width int) engine.Rope {
	rope := engine.Rope{
		Dims:  r.size("rope.dimension_count", width),
		Style: style,
		Base:  r.within("rope.freq_base", 10000, 1, maxRopeBase),
		Scale: 1,
	}
	if rope.Dims%2 != 0 || rope.Dims > width {
		r.fail(invalid("metadata %srope.dimension_count is %d, want an even number up to the head's %d", r.prefix, rope.Dims, width))
	}
	kind := r.ropeScaling()
	if r.err != nil {
		return rope
	}
	if kind == "" && (r.hasTensor(LongFactorsName) || r.hasTensor(ShortFactorsName)) {
		kind = "longrope" // files of Phi-3 have no kind
	}
	switch kind {
	case "longrope":
		r.longRope(&rope)
	case "yarn":
		r.yarn(&rope)
	default:
		if kind != "none" {
			rope.Scale = r.linearScale()
		}
		rope.Divisors = r.ropeFactors(RopeFactorsName, rope.Dims)
		if factor := r.attnFactor(1); factor != 1 {
			rope.Magnitude = factor
		}
	}
	return rope
}

// ropeScaling returns the kind of stretching, "" if the file has none. A factor without a kind is
// linear, as in files older than the kind.
func (r *reader) ropeScaling() string {
	kind, ok, err := r.meta.String(r.prefix + "rope.scaling.type")
	switch {
	case err != nil:
		r.fail(err)
	case !ok:
		return ""
	case kind != "none" && kind != "linear" && kind != "yarn" && kind != "longrope":
		r.fail(unsupported("rope scaling %.64q, want none, linear, yarn or longrope", kind))
	}
	return kind
}

// linearScale returns the divisor of positions.
func (r *reader) linearScale() float32 {
	if r.has("rope.scaling.factor") {
		return r.within("rope.scaling.factor", 0, 1/maxRopeScale, maxRopeScale)
	}
	return r.within("rope.scale_linear", 1, 1/maxRopeScale, maxRopeScale)
}

// attnFactor returns the file's factor of cosines and sines. 0 and absence mean the preset.
func (r *reader) attnFactor(preset float32) float32 {
	const key = "rope.scaling.attn_factor"
	if v, ok, err := r.meta.Float(r.prefix + key); !ok && err == nil || ok && v == 0 {
		return preset
	}
	return r.within(key, 0, 1/maxRopeScale, maxRopeScale)
}

// yarn reads YaRN. Its magnitude is the file's attention factor, else it follows from the factor, as
// in transformers; llama.cpp ignores the attention factor. yarn_log_multiplier is the mscale_all_dim
// of transformers, beside an mscale of 1.
func (r *reader) yarn(rope *engine.Rope) {
	if r.hasTensor(RopeFactorsName) {
		r.fail(unsupported("rope scaling yarn together with tensor %s", RopeFactorsName))
	}
	y := yarn{
		base: float64(rope.Base), dims: rope.Dims,
		factor:   float64(r.within("rope.scaling.factor", 0, 1, maxRopeScale)),
		original: float64(r.bounded("rope.scaling.original_context_length", r.size("context_length", 0), engine.MaxContext)),
		fast:     float64(r.within("rope.scaling.yarn_beta_fast", 32, 1/maxRopeScale, maxRopeScale)),
		slow:     float64(r.within("rope.scaling.yarn_beta_slow", 1, 1/maxRopeScale, maxRopeScale)),
		mix:      r.yarnMix(),
		sharp:    r.sharpYarn,
	}
	if rope.Base <= 1 {
		r.fail(invalid("metadata %srope.freq_base is %g, want more than 1 with rope scaling yarn", r.prefix, rope.Base))
	}
	if y.fast < y.slow {
		r.fail(invalid("metadata %srope.scaling.yarn_beta_fast is %g, want at least the %g of yarn_beta_slow", r.prefix, y.fast, y.slow))
	}
	magnitude := yarnMagnitude(y.factor, 1)
	if r.has("rope.scaling.yarn_attn_factor") {
		magnitude = float64(r.within("rope.scaling.yarn_attn_factor", 0, 1/maxRopeScale, maxRopeScale))
	} else if all := r.yarnLogMultiplier(); all != 0 && r.latentYarn {
		// The key has a tenth of mscale_all_dim, which is the mscale of published models too.
		r.scoreFactor, magnitude = yarnMagnitude(y.factor, 10*all), 1
		r.scoreFactor *= r.scoreFactor
	} else if all != 0 {
		magnitude /= yarnMagnitude(y.factor, all)
	}
	rope.Magnitude = float32(magnitude * float64(r.attnFactor(1)))
	if r.err == nil {
		rope.Divisors = y.divisors()
	}
}

// yarnMix returns how much of the frequencies that are not to be stretched stays as it was. Files
// write -1 for "not set", which is all.
func (r *reader) yarnMix() float64 {
	const key = "rope.scaling.yarn_ext_factor"
	if v, ok, err := r.meta.Float(r.prefix + key); !ok && err == nil || ok && v == -1 {
		return 1
	}
	return float64(r.within(key, 0, 1/maxRopeScale, 1))
}

func (r *reader) yarnLogMultiplier() float64 {
	const key = "rope.scaling.yarn_log_multiplier"
	if v, ok, err := r.meta.Float(r.prefix + key); !ok && err == nil || ok && v == 0 {
		return 0
	}
	return float64(r.within(key, 0, 1/maxRopeScale, maxRopeScale))
}

// yarn is a context that is extended by a factor as in "YaRN: Efficient Context Window Extension of
// Large Language Models" (arXiv 2309.00071).
type yarn struct {
	base, factor, original float64 // original: positions of training
	fast, slow             float64 // turns within the original context from which a frequency stays, and below which it is stretched
	mix                    float64 // of what stays; 1 = all
	dims                   int
	sharp                  bool // borders are not rounded outwards to whole frequencies
}

// divisors returns the divisor of each frequency: 1 where it stays, the factor where it is
// stretched, and a blend between.
func (y yarn) divisors() []float64 {
	border := func(turns float64) float64 { // the frequency that makes the given number of turns within the original context
		return float64(y.dims) * math.Log(y.original/(turns*2*math.Pi)) / (2 * math.Log(y.base))
	}
	low, high := border(y.fast), border(y.slow)
	if !y.sharp {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(0, low), min(float64(y.dims-1), high)
	width := max(0.001, high-low)
	out := make([]float64, y.dims/2)
	for i := range out {
		stays := y.mix * (1 - min(1, max(0, (float64(i)-low)/width)))
		out[i] = 1 / ((1-stays)/y.factor + stays)
	}
	return out
}

// yarnMagnitude is the factor of cosines and sines for a context extended by a factor.
func yarnMagnitude(factor, multiplier float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*multiplier*math.Log(factor) + 1
}

// longRope reads LongRoPE: two lists of divisors, for contexts up to the original one and beyond.
// The rope gets the list for the whole context of the file, and the reader keeps the other one.
func (r *reader) longRope(rope *engine.Rope) {
	for _, name := range []string{LongFactorsName, ShortFactorsName} {
		if !r.hasTensor(name) {
			r.fail(invalid("tensor %s is missing: rope scaling longrope has a list for short and one for long contexts", name))
			return
		}
	}
	if r.hasTensor(RopeFactorsName) {
		r.fail(unsupported("rope scaling longrope together with tensor %s", RopeFactorsName))
	}
	if r.has("rope.scaling.factor") {
		r.fail(unsupported("rope scaling longrope together with a factor (metadata %srope.scaling.factor)", r.prefix))
	}
	context := r.size("context_length", 0)
	original := r.bounded("rope.scaling.original_context_length", 0, engine.MaxContext)
	long, short := r.ropeFactors(LongFactorsName, rope.Dims), r.ropeFactors(ShortFactorsName, rope.Dims)
	rope.Magnitude = r.attnFactor(longMagnitude(context, original))
	rope.Divisors = short
	if context > original {
		rope.Divisors = long
		r.short = &shortRope{original, short}
	}
}

// longMagnitude is the factor of cosines and sines of files that do not state it.
func longMagnitude(context, original int) float32 {
	if context <= original || original <= 1 {
		return 1
	}
	return float32(math.Sqrt(1 + math.Log(float64(context)/float64(original))/math.Log(float64(original))))
}

// shortRope are the divisors of a model with LongRoPE that serves at most the given number of positions.
type shortRope struct {
	context  int
	divisors []float64
}
