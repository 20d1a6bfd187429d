package score_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/millrace/internal/score"
)

func numbers(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i + 1)
	}
	return out
}

func TestTextsAreCutIntoWindows(t *testing.T) {
	const bos = 99
	for name, tc := range map[string]struct {
		tokens, n int
		want      [][]uint32
	}{
		"one whole window":                           {4, 4, [][]uint32{{99, 2, 3, 4}}},
		"the first of each is BOS":                   {8, 4, [][]uint32{{99, 2, 3, 4}, {99, 6, 7, 8}}},
		"a last window with one prediction stays":    {9, 5, [][]uint32{{99, 2, 3, 4, 5}, {99, 7, 8, 9}}},
		"a last window without any is left out":      {8, 5, [][]uint32{{99, 2, 3, 4, 5}}},
		"the smallest window":                        {6, 3, [][]uint32{{99, 2, 3}, {99, 5, 6}}},
		"a text shorter than its window":             {5, 6, [][]uint32{{99, 2, 3, 4, 5}}},
		"a single token beyond a window is left out": {5, 4, [][]uint32{{99, 2, 3, 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			tokens := numbers(tc.tokens)
			got, err := score.Windows(tokens, tc.n, bos)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			require.Equal(t, numbers(tc.tokens), tokens, "the text's own tokens stay")
			for _, w := range got {
				_, count, err := score.Sum(make([]float32, len(w)), tc.n)
				require.NoError(t, err)
				require.Equal(t, len(w)-1-tc.n/2, count)
				require.Positive(t, count)
			}
		})
	}
}

func TestTextsTooShortAreRefusedWithNumbers(t *testing.T) {
	_, err := score.Windows(numbers(5), 8, 0)
	require.ErrorIs(t, err, score.ErrText)
	require.ErrorContains(t, err, "5 tokens")
	require.ErrorContains(t, err, "at least 6")
	_, err = score.Windows(numbers(5), 2, 0)
	require.ErrorIs(t, err, score.ErrText)
	_, err = score.Windows(nil, 3, 0)
	require.ErrorIs(t, err, score.ErrText)
}

func TestPerplexityIsExponentOfMean(t *testing.T) {
	// N = 4: the predictions at positions 2 and later, so the logprob of token 3.
	first, n1, err := score.Sum([]float32{float32(math.NaN()), -50, -60, -1}, 4)
	require.NoError(t, err)
	second, n2, err := score.Sum([]float32{0, -50, -60, -3}, 4)
	require.NoError(t, err)
	mean, perplexity, tokens, err := score.Mean([]float64{first, second}, []int{n1, n2})
	require.NoError(t, err)
	require.Equal(t, 2, tokens)
	require.InDelta(t, -2, mean, 1e-15)
	require.InDelta(t, math.Exp(2), perplexity, 1e-12)
}

func TestPerplexityOfUniformModel(t *testing.T) {
	// A uniform model has the perplexity of its vocabulary.
	logprobs := make([]float32, 64)
	for i := range logprobs {
		logprobs[i] = float32(-math.Log(2048))
	}
	sum, count, err := score.Sum(logprobs, 64)
	require.NoError(t, err)
	require.Equal(t, 31, count)
	_, perplexity, _, err := score.Mean([]float64{sum}, []int{count})
	require.NoError(t, err)
	require.InEpsilon(t, 2048, perplexity, 1e-6)
}

func TestWhatIsNoNumberIsRefused(t *testing.T) {
	for name, v := range map[string]float64{"NaN": math.NaN(), "minus infinity": math.Inf(-1)} {
		t.Run(name, func(t *testing.T) {
			_, _, err := score.Sum([]float32{0, -1, -1, float32(v)}, 4)
			require.ErrorIs(t, err, score.ErrText)
		})
	}
	_, _, _, err := score.Mean(nil, nil)
	require.ErrorIs(t, err, score.ErrText)
}
