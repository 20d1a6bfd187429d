package tokenizer_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

func TestEncodeReadsSpecialsWithinSpans(t *testing.T) {
	tok := mustNew(t, smallBPE())
	for name, tc := range map[string]struct {
		text   string
		within [][2]int
		want   string
	}{
		"nowhere":                    {"<|begin|>", nil, "<|||b|e|g|i|n|||>"},
		"in the span":                {"<|begin|>a", [][2]int{{0, 9}}, "<|begin|>|a"},
		"not beside it":              {"<|begin|><|begin|>", [][2]int{{0, 9}}, "<|begin|>|<|||b|e|g|i|n|||>"},
		"not before it":              {"<|begin|><|begin|>", [][2]int{{9, 18}}, "<|||b|e|g|i|n|||>|<|begin|>"},
		"not across its end":         {"a<|begin|>", [][2]int{{0, 9}}, "a|<|||b|e|g|i|n|||>"},
		"not across two spans":       {"<|begin|>", [][2]int{{0, 4}, {5, 9}}, "<|||b|e|g|i|n|||>"},
		"in the second of two":       {"a<|begin|>", [][2]int{{0, 1}, {1, 10}}, "a|<|begin|>"},
		"what users define, outside": {"<tool>", nil, "<tool>"},
		"what users define, across":  {"a<tool>>", [][2]int{{0, 3}}, "a|<tool>>"},
		"text across a border":       {"hello<|begin|>hello", [][2]int{{2, 16}}, "hello|<|begin|>|hello"},
	} {
		t.Run(name, func(t *testing.T) {
			ids := tok.Encode(tc.text, tokenizer.EncodeOptions{SpecialWithin: tc.within})
			require.Equal(t, tc.want, pieces(t, tok, ids))
		})
	}
}

func TestUserDefinedPiecesLeaveSpecialsWhole(t *testing.T) {
	// "<<" and ">>" are user-defined: they are taken whole wherever they lie, but for where a text
	// from outside would take the first byte of a special token of the template.
	tok := mustNew(t, extended(user, "<<", "a<", ">>"))
	for name, tc := range map[string]struct {
		text   string
		within [][2]int
		want   string
	}{
		"before a special token":               {"<<|begin|>", [][2]int{{1, 10}}, "<|<|begin|>"},
		"a shorter one before it":              {"<<<|begin|>", [][2]int{{2, 11}}, "<<|<|begin|>"},
		"one with a letter":                    {"ba<|begin|>", [][2]int{{2, 11}}, "b|a|<|begin|>"},
		"across a border, and no special":      {"<<|b", [][2]int{{1, 4}}, "<<|||b"},
		"across a border behind a special":     {"<|begin|>>", [][2]int{{0, 9}}, "<|begin|>|>"},
		"written by the template":              {"<<|begin|>", [][2]int{{0, 10}}, "<<|||b|e|g|i|n|||>"},
		"a special token later in the span":    {"<<a<|begin|>", [][2]int{{1, 12}}, "<<|a<|||b|e|g|i|n|||>"},
		"a special token that another's hides": {"<<|begin|>", nil, "<<|||b|e|g|i|n|||>"},
	} {
		t.Run(name, func(t *testing.T) {
			ids := tok.Encode(tc.text, tokenizer.EncodeOptions{SpecialWithin: tc.within})
			require.Equal(t, tc.want, pieces(t, tok, ids))
		})
	}
}

func TestEncodeGivesNoSpecialOutsideOfSpans(t *testing.T) {
	// Random pieces of two origins. The result has as many control tokens as there are names within
	// spans. A text without such a name outside of the spans has the ids that it has where names
	// are read everywhere.
	for name, tc := range map[string]struct {
		src    metadata
		scraps []string
	}{
		"byte level":    {smallBPE(), []string{"<|begin|>", "<|im_end|>", "<|be", "gin|>", "<tool>", "hello", " w", "aa", "é", "\n"}},
		"sentencepiece": {smallSPM(), []string{"<s>", "</s>", "<s", ">", "[INST]", "▁", "hello", " h", "\n", "é"}},
	} {
		t.Run(name, func(t *testing.T) {
			tok, scraps := mustNew(t, tc.src), tc.scraps
			rng := rand.New(rand.NewPCG(3, 4))
			for range 2000 {
				var text strings.Builder
				var within [][2]int
				wasOwn := false
				for range 1 + rng.IntN(8) {
					from := text.Len()
					own := rng.IntN(2) == 0
					text.WriteString(scraps[rng.IntN(len(scraps))])
					switch {
					case own && wasOwn:
						within[len(within)-1][1] = text.Len()
					case own:
						within = append(within, [2]int{from, text.Len()})
					}
					wasOwn = own
				}
				ids := tok.Encode(text.String(), tokenizer.EncodeOptions{SpecialWithin: within})
				everywhere := tok.Encode(text.String(), tokenizer.EncodeOptions{ParseSpecial: true})
				outside, inSpans := names(text.String(), within)
				if outside == 0 {
					require.Equal(t, everywhere, ids, "%q %v", text.String(), within)
				}
				for _, id := range ids {
					if tok.IsSpecial(id) {
						inSpans--
					}
				}
				require.Zero(t, inSpans, "%q %v", text.String(), within)
			}
		})
	}
}

// names counts the names of control tokens in a text, outside of the spans and within them.
func names(text string, within [][2]int) (outside, inSpans int) {
	for _, name := range []string{"<|begin|>", "<|im_end|>", "<s>", "</s>", "<unk>"} {
		for at := range text {
			switch {
			case !strings.HasPrefix(text[at:], name):
			case inside(within, at, at+len(name)):
				inSpans++
			default:
				outside++
			}
		}
	}
	return outside, inSpans
}

func inside(within [][2]int, from, to int) bool {
	for _, span := range within {
		if span[0] <= from && to <= span[1] {
			return true
		}
	}
	return false
}
