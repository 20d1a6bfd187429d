package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMixComputesEachPositionOnce(t *testing.T) {
	for _, tc := range []struct {
		mix   Mix
		count int
		step  int // tokens of a step
	}{
		{Mix{Sequences: 1, Prompt: 1, Tokens: 1}, 1, 512}, {Mix{Sequences: 1, Prompt: 20, Tokens: 9}, 3, 512},
		{Mix{Sequences: 3, Prompt: 17, Tokens: 5}, 7, 16}, {Mix{Sequences: 5, Prompt: 64, Tokens: 8}, 10, 100},
		{Mix{Sequences: 4, Prompt: 33, Tokens: 1}, 9, 8}, {Mix{Sequences: 8, Prompt: 2, Tokens: 30}, 4, 512},
	} {
		t.Run(fmt.Sprintf("%v, %d of them, steps of %d", tc.mix, tc.count, tc.step), func(t *testing.T) {
			cfg := mixConfig(tc.mix, vocabulary, 5, 0, tc.step)
			m := newMixPlayer(cfg, openRunner(t, cfg))
			did, first, err := m.Play(t.Context(), tc.count)
			require.NoError(t, err)
			require.Equal(t, tc.count*tc.mix.Tokens, did.Generated)
			require.Equal(t, did.Generated, did.Samples)
			require.Equal(t, tc.count*(tc.mix.Prompt+tc.mix.Tokens-1), did.Positions)
			require.Positive(t, did.Steps)
			require.Positive(t, did.Time)
			require.Len(t, first, tc.mix.Tokens)
			want := slices.Clone(first)
			_, first, err = m.Play(t.Context(), tc.count)
			require.NoError(t, err)
			require.Equal(t, want, first, "a second round computes the same")
			if tc.mix.Tokens > 1 { // a batchPlayer generates two tokens at least
				alone := config(tc.mix.Prompt, tc.mix.Tokens, 1, 1)
				_, _, tokens := play(t, alone, 1)
				require.Equal(t, want, tokens[0], "sequence 0 has the tokens that it has alone")
			}
		})
	}
}

func TestParseMix(t *testing.T) {
	for _, m := range []Mix{{Sequences: 1, Prompt: 1, Tokens: 1}, {Sequences: 64, Prompt: 1024, Tokens: 256}} {
		got, err := ParseMix(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	for _, wrong := range []string{"", "64", "64x128", "x128/256", "0x1/1", "1x0/1", "1x1/0", "1x1/1/1", "-1x1/1", "1x12345678/1", "64x128/256 "} {
		_, err := ParseMix(wrong)
		require.Error(t, err, wrong)
	}
}
