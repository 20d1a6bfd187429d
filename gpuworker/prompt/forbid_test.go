package prompt

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference"
)

func TestSuppressedTokensAreNeverChosen(t *testing.T) {
	// Few are forbidden by biases and many by a list of the others; either way every token is as if
	// the logits had lacked them.
	const vocabulary = 3000
	random := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, vocabulary)
	for i := range logits {
		logits[i] = float32(random.NormFloat64())
	}
	many := make(map[int32]float32)
	for id := range int32(maxBiases) {
		many[2*id] = 0.5
	}
	for name, tc := range map[string]struct {
		suppressed []int32
		change     func(*Options)
		listed     bool
	}{
		"one token":                     {[]int32{7}, func(*Options) {}, false},
		"a token that a bias lifts":     {[]int32{7, 8}, func(o *Options) { o.Bias = map[int32]float32{7: 100, 9: 1} }, false},
		"an allowed token":              {[]int32{7}, func(o *Options) { o.Allowed = []int32{7, 11, 12} }, false},
		"one beside many biases":        {[]int32{2049}, func(o *Options) { o.Bias = many }, true},
		"two beside biases and allowed": {[]int32{1, 2049}, func(o *Options) { o.Bias, o.Allowed = many, []int32{2049, 100, 101} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := Defaults()
			o.MaxTokens, o.NoText = 4, true
			tc.change(&o)
			before := len(o.Bias)
			m := Model{Name: "m", Context: 16, Loop: room(16), SuppressedIDs: tc.suppressed, Vocabulary: vocabulary}
			lacking := slices.Clone(logits)
			for _, id := range tc.suppressed {
				lacking[id] = float32(math.Inf(-1))
			}
			plain := m
			plain.SuppressedIDs = nil
			for seed := range uint64(50) {
				o.Seed = &seed
				r, err := build(t, m, Input{IDs: []int32{1, 2}}, o)
				require.NoError(t, err)
				require.LessOrEqual(t, len(r.Params.BiasIDs), maxBiases)
				require.True(t, slices.IsSorted(r.Params.BiasIDs))
				if len(o.Allowed) == 0 {
					require.Equal(t, tc.listed, r.Params.Allowed != nil)
				}
				want, err := build(t, plain, Input{IDs: []int32{1, 2}}, o)
				require.NoError(t, err)
				require.Equal(t, choose(lacking, want.Params), choose(logits, r.Params))
			}
			require.Len(t, o.Bias, before, "the request's own map is left alone")
		})
	}
}

// choose is the token after a prompt.
func choose(logits []float32, p engine.SlotParams) int32 {
	return reference.Choose(logits, &p, []int32{1, 2}, 2, nil).Token
}

func TestForbiddingAllAllowedLeavesNoToken(t *testing.T) {
	biases, suppressed := map[int32]float32{}, []int32{5, 2000}
	for id := range int32(maxBiases) {
		biases[id] = 1
	}
	o := Defaults()
	o.NoText, o.Bias, o.Allowed = true, biases, []int32{5, 2000}
	m := Model{Name: "m", Context: 16, Loop: room(16), SuppressedIDs: suppressed, Vocabulary: 3000}
	r, err := build(t, m, Input{IDs: []int32{1}}, o)
	require.NoError(t, err)
	require.NotEmpty(t, r.Params.Allowed, "engines refuse an empty list")
	require.EqualValues(t, -1, choose(make([]float32, 3000), r.Params))
}
