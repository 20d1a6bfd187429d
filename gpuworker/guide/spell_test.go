package guide

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spelledTokens has a token for each byte, ids 0 to 254, the words, and an end token behind them. Its usual spelling is
// the longest token at each place.
func spelledTokens(words ...string) *Vocabulary {
	texts := make([]string, 256, 257+len(words))
	for i := range texts {
		texts[i] = string([]byte{byte(i)})
	}
	texts = append(texts, words...)
	v := NewVocabulary(len(texts)+1, func(id int32) []byte {
		if int(id) == len(texts) || texts[id] == Control {
			return nil
		}
		return []byte(texts[id])
	}, 1<<20)
	v.SetSpelling(func(text string) (ids []int32) {
		for text != "" {
			best := int(text[0])
			for i, w := range texts {
				if len(w) > len(texts[best]) && strings.HasPrefix(text, w) {
					best = i
				}
			}
			ids, text = append(ids, int32(best)), text[len(texts[best]):]
		}
		return ids
	})
	return v
}

// spelling returns the tokens that a state with usual spelling forces, separated by spaces, up to a mask of several.
func spelling(t *testing.T, s State) (tokens string) {
	t.Helper()
	mask := make([]uint32, s.Words())
	for {
		w := s.Walk(nil, mask)
		for !w.Run(1 << 20) {
		}
		_, err := w.Result()
		require.NoError(t, err)
		id, only := w.Only()
		if text := s.grammar.vocabulary.bytesOf(id); !only || len(text) == 0 {
			return strings.TrimSpace(tokens)
		}
		tokens += string(s.grammar.vocabulary.bytesOf(id)) + " "
		s, err = s.Advance(id)
		require.NoError(t, err)
	}
}

// Text that a grammar leaves has the tokens of the tokenizer, up to the token that may reach into what follows.
func TestForcedTextHasItsUsualTokens(t *testing.T) {
	const object = `{"type":"object","properties":{"temperature":{"type":"integer"},"unit":{"enum":["celsius","kelvin"]}},"required":["temperature","unit"],"additionalProperties":false}`
	v := spelledTokens("temp", "erature", "temperature", `":`, `": `, `"unit`, "unit", "cel", "sius", "kel", "vin", `"}`, "ab", "abc", "bcx", "é", "né")
	for name, tc := range map[string]struct {
		source       Source
		after        string
		usual, plain string
	}{
		"the rest of a key":               {Source{Kind: JSONSchema, Text: object}, `{"`, "temperature", ""},
		"inside a word":                   {Source{Kind: JSONSchema, Text: object}, `{"temp`, "erature", ""},
		"what may reach further":          {Source{Kind: JSONSchema, Text: object}, `{"temperature`, "", ""},
		"another key":                     {Source{Kind: JSONSchema, Text: object}, `{"temperature":3,"u`, "n i t", "n i t"},
		"one of several":                  {Source{Kind: JSONSchema, Text: object}, `{"temperature":3,"unit":"`, "", ""},
		"its rest":                        {Source{Kind: JSONSchema, Text: object}, `{"temperature":3,"unit":"c`, "e l sius", "e l"},
		"a whole text":                    {Source{Kind: Choice, Options: []string{"abcab"}}, "", "abc ab", ""},
		"a token that may go on":          {Source{Kind: Regex, Text: `zab(c|d)`}, "", "z", "z"},
		"a token inside that may go on":   {Source{Kind: Regex, Text: `aab(x|cx)`}, "", "a", "a"},
		"a character of two bytes":        {Source{Kind: Regex, Text: `né(a|b)`}, "", "né", ""},
		"half a character":                {Source{Kind: Regex, Text: `m(é|è)`}, "", "m", "m"},
		"a letter of either case":         {Source{Kind: Regex, Text: `(?i)kel`}, "", "", ""},
		"more text than one mask may see": {Source{Kind: Choice, Options: []string{strings.Repeat("kelvin", 40)}}, "", strings.TrimSpace(strings.Repeat("kel vin ", 40)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Compile(tc.source, v)
			require.NoError(t, err)
			s := g.Start([]int32{int32(v.size - 1)})
			if tc.after != "" {
				s, err = s.AdvanceText(tc.after)
				require.NoError(t, err)
			}
			require.Equal(t, tc.usual, spelling(t, s.UsualSpelling()))
			require.Equal(t, tc.plain, spelling(t, s))
		})
	}
}

// A control token is no text: what is before it is spelled as if the text ended there.
func TestForcedTextEndsAtControlTokens(t *testing.T) {
	v := spelledTokens("ab", "abc", Control+"<end>")
	g, err := Compile(Source{Kind: Composed, Term: &Term{Op: Sequence, Of: []Term{
		{Text: "cab" + Control + "<end>"}, {Op: Free},
	}}}, v)
	require.NoError(t, err)
	require.Equal(t, "c ab "+Control+"<end>", spelling(t, g.Start([]int32{int32(v.size - 1)}).UsualSpelling()))
}

// Along random texts, a mask with usual spelling is that without it, or one token of it; the texts that can be
// reached are the same, and a state has one mask however it was reached.
func TestUsualSpellingChoosesAmongTheAllowed(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	v, forced := spelledTokens("true", "null", "ab", `":`, `"a`, `", "`, "kind", "nd\":", "é", "[1,\"x"), 0
	for range 300 {
		g, err := Compile(Source{Kind: JSONSchema, Text: randomSchema(rng, rng.IntN(3))}, v)
		if err != nil {
			require.ErrorIs(t, err, ErrUnsupported)
			continue
		}
		s := g.Start([]int32{int32(v.size - 1)})
		for range 60 {
			all, usual := make([]uint32, v.Words()), make([]uint32, v.Words())
			require.NoError(t, s.Mask(all))
			require.NoError(t, s.UsualSpelling().Mask(usual))
			ids := setBits(usual)
			if len(ids) != len(setBits(all)) {
				require.Len(t, ids, 1)
				forced++
			}
			for i := range usual {
				require.Zero(t, usual[i]&^all[i], "a token that is not allowed")
			}
			id := ids[rng.IntN(len(ids))]
			if int(id) == v.size-1 {
				break
			}
			s, err = s.Advance(id)
			require.NoError(t, err)
			if rng.IntN(20) == 0 {
				g.mu.rules = -maxGrammarBytes // the arena is dropped before the next mask
			}
		}
	}
	require.Greater(t, forced, 100)
}
