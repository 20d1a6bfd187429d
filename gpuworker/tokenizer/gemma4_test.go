package tokenizer_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// smallGemma is a vocabulary as converters write that of Gemma 4: pieces with "▁" for a space,
// byte pieces, scores that mean nothing, and a list of merges.
func smallGemma() metadata {
	pieces := []string{"<pad>", "<eos>", "<bos>", "<unk>"}
	kinds := []int64{ctrl, ctrl, ctrl, ctrl}
	add := func(kind int64, ps ...string) {
		for _, p := range ps {
			pieces, kinds = append(pieces, p), append(kinds, kind)
		}
	}
	for b := range 256 {
		add(bytek, fmt.Sprintf("<0x%02X>", b))
	}
	add(normal, "▁", "a", "b", "h", "e", "\n", "!", "ab", "▁ab", "he", "▁he", "abab", "\n\n", "\n\n\n", "bh", "世")
	add(user, "▁▁", "<|channel>")
	add(ctrl, "<|turn>", "<turn|>", "!h")
	return metadata{
		"tokenizer.ggml.model":         "gemma4",
		"tokenizer.ggml.tokens":        pieces,
		"tokenizer.ggml.token_type":    kinds,
		"tokenizer.ggml.scores":        make([]float64, len(pieces)),
		"tokenizer.ggml.merges":        []string{"▁ ▁", "\n \n", "h e", "▁ he", "a b", "b h", "▁ ab", "ab ab", "! h"},
		"tokenizer.ggml.bos_token_id":  uint64(2),
		"tokenizer.ggml.eos_token_id":  uint64(1),
		"tokenizer.ggml.add_bos_token": true,
	}
}

func TestGemma4MergesByRankOverTheWholeText(t *testing.T) {
	tok := mustNew(t, smallGemma())
	for text, want := range map[string]string{
		"ab ab":        "ab| ab", // no space before the text
		" ab":          " ab",
		"abab":         "abab",
		"ababh":        "abab|h",     // "a b" comes before "b h"
		"he he":        "he| he",     // a merge over what other tokenizers split
		"bhe":          "b|he",       // "h e" comes before "b h"
		"  ab":         "  |ab",      // "▁ ▁" is first
		"   he":        "  | he",     // leftmost first
		"a\n\nb":       "a|\n\n|b",   // a run of line breaks is one piece
		"a\n\n\nb":     "a|\n\n\n|b", // without a merge that leads to it
		"\n\n\n\n":     "\n\n|\n\n",  // too long for a piece: merges alone
		"é":            "\xc3|\xa9",  // bytes
		"\xffa":        "\xff|a",     // not UTF-8
		"!he":          "!|he",       // no text becomes structure
		"<|channel>ab": "<|channel>|ab",
		"世!":           "世|!",
		"":             "",
	} {
		require.Equal(t, want, pieces(t, tok, tok.Encode(text, plain)), "%q", text)
	}
	ids := tok.Encode("<|turn>ab<turn|>", tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	require.Equal(t, "<bos>|<|turn>|ab|<turn|>", pieces(t, tok, ids))
	for _, id := range tok.Encode("<|turn>ab<turn|>", plain) {
		require.NotEqual(t, tokenizer.KindControl, tok.KindOf(id), "text from outside is no structure")
	}
	for _, name := range []string{"<eos>", "<turn|>"} {
		ids := tok.Encode(name, tokenizer.EncodeOptions{ParseSpecial: true})
		require.True(t, tok.IsEndOfGeneration(ids[0]), name)
	}
}

func TestGemma4DecodesWhatItEncodes(t *testing.T) {
	tok := mustNew(t, smallGemma())
	for _, text := range []string{" ab", "  ab   he", "a\n\n\n\nb", "é世🙂", "\t<|channel>", "      "} {
		back, err := tok.Decode(tok.Encode(text, plain), whole)
		require.NoError(t, err)
		require.Equal(t, text, back)
	}
}

// naiveGemma merges the pair of the lowest rank of the whole text, one after another.
func naiveGemma(ids map[string]int32, merges []string, text string) []int32 {
	rank := map[string]int{}
	for i, m := range merges {
		rank[m] = i
	}
	var parts []string
	for _, r := range strings.ReplaceAll(text, " ", "▁") {
		parts = append(parts, string(r))
	}
	for {
		best := -1
		for i := 0; i+1 < len(parts); i++ {
			r, ok := rank[parts[i]+" "+parts[i+1]]
			if ok && (best < 0 || r < rank[parts[best]+" "+parts[best+1]]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		parts[best] += parts[best+1]
		parts = append(parts[:best+1], parts[best+2:]...)
	}
	var out []int32
	for _, p := range parts {
		out = append(out, ids[p])
	}
	return out
}

func TestGemma4EqualsTheNaiveWay(t *testing.T) {
	src := smallGemma()
	tok := mustNew(t, src)
	ids := map[string]int32{}
	for i, p := range src["tokenizer.ggml.tokens"].([]string) {
		ids[p] = int32(i)
	}
	merges := src["tokenizer.ggml.merges"].([]string)
	merges = merges[:len(merges)-1] // the one to structure
	rng := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		var b strings.Builder
		for range 1 + rng.IntN(60) {
			b.WriteString([]string{"a", "b", "h", "e", " ", "!", "世", "he", "ab"}[rng.IntN(9)])
		}
		require.Equal(t, naiveGemma(ids, merges, b.String()), tok.Encode(b.String(), plain), "%q", b.String())
	}
}

func TestDamagedGemma4VocabulariesAreRefused(t *testing.T) {
	good := smallGemma()
	for name, tc := range map[string]struct {
		src  metadata
		want string
	}{
		"no merges":          {good.with(metadata{"tokenizer.ggml.merges": nil}), "tokenizer.ggml.merges is missing"},
		"a merge of one":     {good.with(metadata{"tokenizer.ggml.merges": []string{"ab"}}), `merge 0 is "ab", want two pieces`},
		"a merge to nothing": {good.with(metadata{"tokenizer.ggml.merges": []string{"a b", "a h"}}), `merge 1 makes "ah", which is no piece`},
		"a long merge":       {good.with(metadata{"tokenizer.ggml.merges": []string{strings.Repeat("a", 1500) + " " + strings.Repeat("b", 1500)}}), "merge 0 has 3001 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tokenizer.New(tc.src)
			require.ErrorIs(t, err, tokenizer.ErrVocab)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := tokenizer.New(good.with(metadata{"tokenizer.ggml.scores": nil}))
	require.NoError(t, err, "scores mean nothing here")
}

// FuzzGemma4ComesBack encodes any bytes. Valid text comes back, except the character that stands for
// a space.
func FuzzGemma4ComesBack(f *testing.F) {
	tok := mustNew(f, smallGemma())
	for _, text := range []string{"", "ab  he", "a\n\n\n\n\nb", "\xff\xfe", "<|turn><|channel>", "▁▁", "é世🙂 !h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ids := tok.Encode(text, plain)
		var raw []byte
		for _, id := range ids {
			require.NotEqual(t, tokenizer.KindControl, tok.KindOf(id))
			p, ok := tok.Piece(id)
			require.True(t, ok)
			raw = append(raw, p...)
		}
		require.Equal(t, strings.ReplaceAll(text, "▁", " "), string(raw))
	})
}

func TestRefusedPretokenizersNameTheReason(t *testing.T) {
	for name, want := range map[string]string{
		"afmoe":        "could not be held to the pattern that its model was trained with",
		"solar-open":   "could not be held to the pattern",
		"jina-v2-code": "models that compute embeddings",
		"gemma4":       `belongs to tokenizer.ggml.model "gemma4"`,
		"klingon":      "a newer version may have it",
	} {
		_, err := tokenizer.New(smallBPE().with(metadata{"tokenizer.ggml.pre": name}))
		require.ErrorIs(t, err, tokenizer.ErrUnsupported)
		require.ErrorContains(t, err, fmt.Sprintf("pre-tokenizer %q", name))
		require.ErrorContains(t, err, want)
	}
}
