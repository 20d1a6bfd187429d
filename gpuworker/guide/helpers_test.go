package guide

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// byteTokens is a vocabulary of one token for each byte, and an end token, 256.
func byteTokens() *Vocabulary {
	return NewVocabulary(257, func(id int32) []byte {
		if id == 256 {
			return nil
		}
		return []byte{byte(id)}
	}, 1<<20)
}

func compile(t *testing.T, s Source) *Grammar {
	t.Helper()
	g, err := Compile(s, byteTokens())
	require.NoError(t, err)
	return g
}

// accepts reports whether text is a whole text of the grammar.
func accepts(g *Grammar, text string) bool {
	s := g.Start(nil)
	if text != "" {
		var err error
		if s, err = s.AdvanceText(text); err != nil {
			return false
		}
	}
	return s.Complete()
}

// checkTexts compares the texts that a source accepts.
func checkTexts(t *testing.T, s Source, yes, no []string) {
	t.Helper()
	g := compile(t, s)
	for _, text := range yes {
		require.True(t, accepts(g, text), "%q is refused", text)
	}
	for _, text := range no {
		require.False(t, accepts(g, text), "%q is accepted", text)
	}
}

// walkMasks generates a text by choosing tokens of the masks at random, ending with a chance of one in
// end where that is allowed. It returns false if the text did not end within most tokens.
func walkMasks(t *testing.T, rng *rand.Rand, g *Grammar, end int32, most int, prefer func(id int32) bool) (string, bool) {
	t.Helper()
	s, text := g.Start([]int32{end}), ""
	mask := make([]uint32, g.vocabulary.Words())
	for range most {
		require.NoError(t, s.Mask(mask), "after %q", text)
		var ids []int32
		for id := range int32(g.vocabulary.size) {
			if mask[id>>5]&(1<<(id&31)) != 0 {
				ids = append(ids, id)
			}
		}
		id := ids[rng.IntN(len(ids))]
		if prefer != nil {
			for range 8 {
				if prefer(id) {
					break
				}
				id = ids[rng.IntN(len(ids))]
			}
		}
		if id == end {
			require.True(t, s.Complete())
			return text, true
		}
		text += string(g.vocabulary.bytesOf(id))
		var err error
		s, err = s.Advance(id)
		require.NoError(t, err)
	}
	return text, false
}
