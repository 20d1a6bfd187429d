package tokenizer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

var (
	plain = tokenizer.EncodeOptions{}
	whole = tokenizer.DecodeOptions{}
)

func TestByteLevelWordsMergeByRank(t *testing.T) {
	tok := mustNew(t, smallBPE())
	for text, want := range map[string]string{
		"hello world":            "hello| wo|r|l|d",
		"hell":                   "hell",
		"ehllo":                  "e|h|ll|o",
		"aaaaaaa":                "aaaa|aa|a",
		"":                       "",
		"<|begin|>hello":         "<|begin|>|hello",
		"a<tool>>b":              "a|<tool>>|b",
		strings.Repeat("a", 400): strings.TrimSuffix(strings.Repeat("aaaa|", 100), "|"),
	} {
		ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: true})
		require.Equal(t, want, pieces(t, tok, ids), "%.40q", text)
	}
}

func TestControlNamesInTextAreTextUnlessAskedFor(t *testing.T) {
	for name, src := range map[string]metadata{"byte level": smallBPE(), "sentencepiece": smallSPM()} {
		t.Run(name, func(t *testing.T) {
			tok := mustNew(t, src)
			for _, special := range []string{"<|begin|>", "<|im_end|>", "<s>", "</s>", "<unk>", "<0x41>"} {
				for _, id := range tok.Encode("x"+special+"y "+special, plain) {
					require.NotEqual(t, tokenizer.KindControl, tok.KindOf(id), "%q became %d", special, id)
				}
			}
		})
	}
}

func TestUserDefinedPiecesAreAlwaysWhole(t *testing.T) {
	bpe, spm := mustNew(t, smallBPE()), mustNew(t, smallSPM())
	require.Equal(t, "a|<tool>|b", pieces(t, bpe, bpe.Encode("a<tool>b", plain)))
	require.Equal(t, " h|[INST]| |a", pieces(t, spm, spm.Encode("h[INST]a", plain)))
}

func TestBeginAndEndAreAddedAsTheMetadataSays(t *testing.T) {
	for name, tc := range map[string]struct {
		src        metadata
		begin, end bool
	}{
		"byte level adds neither by default":     {src: smallBPE()},
		"llama3 adds the begin by default":       {src: smallBPE().with(metadata{"tokenizer.ggml.pre": "llama-bpe"}), begin: true},
		"sentencepiece adds the begin":           {src: smallSPM(), begin: true},
		"the metadata can ask for both":          {src: smallBPE().with(metadata{"tokenizer.ggml.add_bos_token": true, "tokenizer.ggml.add_eos_token": true}), begin: true, end: true},
		"the metadata can refuse the begin":      {src: smallSPM().with(metadata{"tokenizer.ggml.add_bos_token": false})},
		"a default without a token adds nothing": {src: smallBPE().with(metadata{"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": nil})},
	} {
		t.Run(name, func(t *testing.T) {
			tok := mustNew(t, tc.src)
			require.Equal(t, tc.begin, tok.AddsBOS())
			require.Equal(t, tc.end, tok.AddsEOS())
			want := tok.Encode("hello", plain)
			if tc.begin {
				want = append([]int32{tok.Special().BOS}, want...)
			}
			if tc.end {
				want = append(want, tok.Special().EOS)
			}
			require.Equal(t, want, tok.Encode("hello", tokenizer.EncodeOptions{AddSpecial: true}))
		})
	}
}

func TestScoresDecideWhichPiecesMerge(t *testing.T) {
	tok := mustNew(t, smallSPM())
	for text, want := range map[string]string{
		"hello":      " hello",
		"hello aa":   " hello| |aa",
		"aaa":        " |aa|a",
		"ho":         " h|o",
		"é":          " |\xc3|\xa9",
		"":           "",
		"\xff":       " |\xff",
		"hello<s":    " hello|<s",
		"hel hello ": " hel| hello| ",
	} {
		require.Equal(t, want, pieces(t, tok, tok.Encode(text, plain)), "%q", text)
	}
}

func TestSpacePrefixCanBeTurnedOff(t *testing.T) {
	tok := mustNew(t, smallSPM().with(metadata{"tokenizer.ggml.add_space_prefix": false}))
	ids := tok.Encode("h h", plain)
	require.Equal(t, "h| h", pieces(t, tok, ids))
	text, err := tok.Decode(tok.Encode(" h", plain), whole)
	require.NoError(t, err)
	require.Equal(t, " h", text)
}

func TestIgnoreMergesKeepsWholeWords(t *testing.T) {
	// Ignore-merges encodes whole words that merges cannot reach.
	src := smallBPE()
	src["tokenizer.ggml.tokens"] = append(src["tokenizer.ggml.tokens"].([]string), "xyz")
	src["tokenizer.ggml.token_type"] = append(src["tokenizer.ggml.token_type"].([]int64), normal)
	gpt2, llama3 := mustNew(t, src), mustNew(t, src.with(metadata{"tokenizer.ggml.pre": "llama-bpe"}))
	require.Equal(t, "x|y|z", pieces(t, gpt2, gpt2.Encode("xyz", plain)))
	require.Equal(t, "xyz", pieces(t, llama3, llama3.Encode("xyz", plain)))
}

func TestPhi3SpecialTokensStripRight(t *testing.T) {
	// Special tokens of phi-3 absorb the space after them.
	tok := mustNew(t, smallSPM().with(metadata{"general.name": "Phi-3 mini", "tokenizer.ggml.add_space_prefix": false}))
	parse := tokenizer.EncodeOptions{ParseSpecial: true}
	require.Equal(t, "</s>|h", pieces(t, tok, tok.Encode("</s> \nh", parse)))
	require.Equal(t, "<s>| h", pieces(t, tok, tok.Encode("<s> h", parse)))
}

func TestMegabyteWithoutSpacesIsFast(t *testing.T) {
	toks := map[string]*tokenizer.Tokenizer{
		"small byte level": mustNew(t, smallBPE()), "small sentencepiece": mustNew(t, smallSPM()), "stories": stories(t),
	}
	for name, tok := range toks {
		for _, unit := range []string{"a", " ", "\n", "1", "!", "é", "ah", "\xff", "<", "'"} {
			text := strings.Repeat(unit, longRun/len(unit))
			done := make(chan string, 1)
			go func() {
				back, err := tok.Decode(tok.Encode(text, plain), whole)
				if err != nil {
					back = err.Error()
				}
				done <- back
			}()
			select {
			case back := <-done:
				if unit != "\xff" {
					if text != back { // too long to print
						require.Fail(t, "another text comes back", "%s: a run of %q", name, unit)
					}
				}
			case <-time.After(60 * time.Second):
				require.Fail(t, "hang", "%s: a run of %q", name, unit)
			}
		}
	}
}

func TestLongAndShortRunsMergeAlike(t *testing.T) {
	// The same merges, once in words below the length where the heap takes over and once in one
	// long word.
	tok := mustNew(t, smallBPE())
	word := "hellohellaahe"
	short := tok.Encode(word, plain)
	long := tok.Encode(strings.Repeat(word, 50), plain)
	for i := range 50 {
		require.Equal(t, short, long[i*len(short):(i+1)*len(short)])
	}
}
