package arch_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/arch"
	"github.com/millrace/millrace/gpuworker/gguf"
)

// yarned is a model whose frequencies i of 8 make 4096/(2 pi 10000^(i/8)) turns within the original
// context: 652 to 0.2.
func yarned() *model {
	return llama().set("llama.rope.dimension_count", uint32(16)).set("llama.rope.scaling.type", "yarn").
		set("llama.rope.scaling.factor", float32(8)).set("llama.rope.scaling.original_context_length", uint32(4096))
}

func TestYarnDivisorsAndMagnitude(t *testing.T) {
	// By hand: 16 ln(4096 / (32 2 pi)) / (2 ln 10000) = 2.62 and 16 ln(4096 / (2 pi)) / (2 ln 10000) =
	// 5.63, so frequencies up to 2 stay, those from 6 on are divided by 8, and between them
	// 1/(ramp/8 + 1-ramp) with a ramp of 1/4, 1/2 and 3/4.
	between := []float64{1, 1, 1, 1 / 0.78125, 1 / 0.5625, 1 / 0.34375, 8, 8}
	for name, tc := range map[string]struct {
		model     *model
		divisors  []float64
		magnitude float64
	}{
		"presets": {yarned(), between, 1 + 0.1*math.Log(8)},
		"the original context is the model's": {yarned().unset("llama.rope.scaling.original_context_length").set("llama.context_length", uint32(4096)),
			between, 1 + 0.1*math.Log(8)},
		"an attention factor":               {yarned().set("llama.rope.scaling.yarn_attn_factor", float32(0.75)), between, 0.75},
		"mscale_all_dim of 1":               {yarned().set("llama.rope.scaling.yarn_log_multiplier", float32(1)), between, 1},
		"mscale_all_dim of 0.5":             {yarned().set("llama.rope.scaling.yarn_log_multiplier", float32(0.5)), between, (1 + 0.1*math.Log(8)) / (1 + 0.05*math.Log(8))},
		"mscale_all_dim of 0":               {yarned().set("llama.rope.scaling.yarn_log_multiplier", float32(0)), between, 1 + 0.1*math.Log(8)},
		"a factor of the cosines beside it": {yarned().set("llama.rope.scaling.attn_factor", float32(0.5)), between, 0.5 + 0.05*math.Log(8)},
		"half of what stays": {yarned().set("llama.rope.scaling.yarn_ext_factor", float32(0.5)),
			[]float64{1 / 0.5625, 1 / 0.5625, 1 / 0.5625, 1 / (0.375 + 0.625/8), 1 / (0.25 + 0.75/8), 1 / (0.125 + 0.875/8), 8, 8}, 1 + 0.1*math.Log(8)},
		"an unset extrapolation factor": {yarned().set("llama.rope.scaling.yarn_ext_factor", float32(-1)), between, 1 + 0.1*math.Log(8)},
		// ln(4096 / (8 2 pi)) gives 3.82, and ln(4096 / (2 2 pi)) gives 5.03: frequencies up to 3 stay.
		"other borders": {yarned().set("llama.rope.scaling.yarn_beta_fast", float32(8)).set("llama.rope.scaling.yarn_beta_slow", float32(2)),
			[]float64{1, 1, 1, 1, 1 / (2.0/3 + 1.0/24), 1 / (1.0/3 + 2.0/24), 8, 8}, 1 + 0.1*math.Log(8)},
		"no frequency stays": {yarned().set("llama.rope.scaling.original_context_length", uint32(4)), []float64{1, 8, 8, 8, 8, 8, 8, 8}, 1 + 0.1*math.Log(8)},
		"a factor of 1":      {yarned().set("llama.rope.scaling.factor", float32(1)), slices.Repeat([]float64{1}, 8), 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := tc.model.parse(t)
			require.NoError(t, err)
			rope := m.Desc.Ropes[0]
			require.InDeltaSlice(t, tc.divisors, rope.Divisors, 1e-12)
			require.InDelta(t, tc.magnitude, float64(rope.Magnitude), 1e-7)
			require.EqualValues(t, 1, rope.Scale, "the divisors have the factor")
		})
	}
}

func TestGptOSSDoesNotRoundYarnsBorders(t *testing.T) {
	// By hand, as transformers with truncate false: 64 ln(4096 / (32 2 pi)) / (2 ln 150000) = 8.0928 and 64 ln(4096 / (2 pi)) /
	// (2 ln 150000) = 17.3980, whose distance is 9.3052.
	d, err := arch.Describe(header(t, "gpt-oss", gptOSSKeys(24, 32), nil, nil), "gpt-oss")
	require.NoError(t, err)
	rope := d.Desc.Ropes[0]
	require.InDelta(t, 1+0.1*math.Log(32), float64(rope.Magnitude), 1e-7)
	for i, want := range map[int]float64{0: 1, 8: 1, 9: rampOf((9 - 8.0928) / 9.3052), 17: rampOf((17 - 8.0928) / 9.3052), 18: 32, 31: 32} {
		require.InDelta(t, want, rope.Divisors[i], 1e-3*want, "frequency %d", i)
	}
}

// rampOf is the divisor of a frequency that is stretched 32 times in part.
func rampOf(part float64) float64 { return 1 / (part/32 + 1 - part) }

// longRoped has divisors of 1.8115 for more than 48 positions, and of 0.747 for fewer.
func longRoped() *model {
	return llama().set("llama.rope.scaling.original_context_length", uint32(48)).
		add("rope_factors_long.weight", gguf.F16, 12).add("rope_factors_short.weight", gguf.F32, 12)
}

func TestLongRopeFactorsFollowTheContext(t *testing.T) {
	long, short := slices.Repeat([]float64{1.8115234375}, 12), slices.Repeat([]float64{float64(math.Float32frombits(0x3F3F3F3F))}, 12)
	m, err := longRoped().parse(t)
	require.NoError(t, err)
	require.Equal(t, long, m.Desc.Ropes[0].Divisors, "the context of the file is 64")
	require.InDelta(t, math.Sqrt(1+math.Log(64.0/48)/math.Log(48)), float64(m.Desc.Ropes[0].Magnitude), 1e-7)
	for context, want := range map[int][]float64{1: short, 48: short, 49: long, 64: long} {
		d, isShort := m.Serving(context)
		require.Equal(t, want, d.Ropes[0].Divisors, "%d positions", context)
		require.Equal(t, context <= 48, isShort)
		require.Equal(t, m.Desc.Ropes[0].Magnitude, d.Ropes[0].Magnitude)
	}
	require.Equal(t, long, m.Desc.Ropes[0].Divisors, "the model is as it was")
	require.Len(t, m.Bindings, 3+2*9, "engines get the divisors with the description")

	m, err = longRoped().set("llama.rope.scaling.attn_factor", float32(1.25)).parse(t)
	require.NoError(t, err)
	require.EqualValues(t, 1.25, m.Desc.Ropes[0].Magnitude)

	m, err = longRoped().set("llama.rope.scaling.original_context_length", uint32(64)).parse(t)
	require.NoError(t, err)
	require.Equal(t, short, m.Desc.Ropes[0].Divisors)
	require.EqualValues(t, 1, m.Desc.Ropes[0].Magnitude)
	_, isShort := m.Serving(64)
	require.False(t, isShort, "there is no other choice")
}

func TestPhi3MagnitudeIsThePublishedOne(t *testing.T) {
	// Phi-3 mini 128k: sqrt(1 + ln(32) / ln(4096)) = sqrt(17/12).
	m, err := longRoped().set("llama.context_length", uint32(131072)).set("llama.rope.scaling.original_context_length", uint32(4096)).parse(t)
	require.NoError(t, err)
	require.InDelta(t, math.Sqrt(17.0/12), float64(m.Desc.Ropes[0].Magnitude), 1e-6)
}

func TestBadRopeScalingsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		model *model
		kind  error
		want  string
	}{
		"an unknown kind":                {llama().set("llama.rope.scaling.type", "dynamic"), arch.ErrUnsupportedArch, `rope scaling "dynamic", want none, linear, yarn or longrope`},
		"a kind in numbers":              {llama().set("llama.rope.scaling.type", uint32(1)), gguf.ErrValueType, "rope.scaling.type"},
		"yarn without a factor":          {yarned().unset("llama.rope.scaling.factor"), arch.ErrInvalidModel, "llama.rope.scaling.factor is missing"},
		"yarn that shortens":             {yarned().set("llama.rope.scaling.factor", float32(0.5)), arch.ErrInvalidModel, "llama.rope.scaling.factor is 0.5, want 1 to 10000"},
		"yarn with a base of 1":          {yarned().set("llama.rope.freq_base", float32(1)), arch.ErrInvalidModel, "llama.rope.freq_base is 1, want more than 1"},
		"borders turned around":          {yarned().set("llama.rope.scaling.yarn_beta_fast", float32(1)).set("llama.rope.scaling.yarn_beta_slow", float32(32)), arch.ErrInvalidModel, "yarn_beta_fast is 1, want at least the 32"},
		"an extrapolation factor of 2":   {yarned().set("llama.rope.scaling.yarn_ext_factor", float32(2)), arch.ErrInvalidModel, "yarn_ext_factor is 2, want 0.0001 to 1"},
		"no extrapolation":               {yarned().set("llama.rope.scaling.yarn_ext_factor", float32(0)), arch.ErrInvalidModel, "yarn_ext_factor is 0, want"},
		"an attention factor of NaN":     {yarned().set("llama.rope.scaling.yarn_attn_factor", float32(math.NaN())), arch.ErrInvalidModel, "yarn_attn_factor is NaN"},
		"an original context of 0":       {yarned().set("llama.rope.scaling.original_context_length", uint32(0)), arch.ErrInvalidModel, "original_context_length is 0"},
		"yarn and factors":               {yarned().add("rope_freqs.weight", gguf.F32, 8), arch.ErrUnsupportedArch, "rope scaling yarn together with tensor rope_freqs.weight"},
		"long factors alone":             {longRoped().remove("rope_factors_short.weight"), arch.ErrInvalidModel, "tensor rope_factors_short.weight is missing"},
		"short factors alone":            {longRoped().remove("rope_factors_long.weight"), arch.ErrInvalidModel, "tensor rope_factors_long.weight is missing"},
		"longrope without factors":       {llama().set("llama.rope.scaling.type", "longrope"), arch.ErrInvalidModel, "tensor rope_factors_long.weight is missing"},
		"longrope without an original":   {longRoped().unset("llama.rope.scaling.original_context_length"), arch.ErrInvalidModel, "original_context_length is missing"},
		"longrope and a factor":          {longRoped().set("llama.rope.scaling.factor", float32(2)), arch.ErrUnsupportedArch, "rope scaling longrope together with a factor (metadata llama.rope.scaling.factor)"},
		"yarn and long factors":          {longRoped().set("llama.rope.scaling.type", "yarn").set("llama.rope.scaling.factor", float32(2)), arch.ErrUnsupportedArch, "tensor rope_factors_long.weight has no role"},
		"long factors too many":          {longRoped().replace("rope_factors_long.weight", gguf.F32, 24), arch.ErrInvalidModel, "rope_factors_long.weight has dimensions [24], want [12]"},
		"short factors of zero":          {longRoped().filled(0), arch.ErrInvalidModel, "factor 0 is 0, want a finite number above 0"},
		"longrope and factors of Llama":  {longRoped().add("rope_freqs.weight", gguf.F32, 12), arch.ErrUnsupportedArch, "rope scaling longrope together with tensor rope_freqs.weight"},
		"a factor of cosines far beyond": {llama().set("llama.rope.scaling.attn_factor", float32(1e9)), arch.ErrInvalidModel, "attn_factor is 1e+09, want"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.model.parse(t)
			require.ErrorIs(t, err, tc.kind)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
