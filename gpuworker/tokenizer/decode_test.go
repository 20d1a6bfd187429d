package tokenizer_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

func TestDecoderHoldsBackIncompleteCharacters(t *testing.T) {
	tok := mustNew(t, smallBPE())
	d := tok.NewDecoder(whole)
	var steps []string
	for _, id := range tok.Encode("é🙂!", plain) {
		text, err := d.Push(id)
		require.NoError(t, err)
		steps = append(steps, text)
	}
	require.Equal(t, []string{"", "é", "", "", "", "🙂", "!"}, steps)
	require.Empty(t, d.Flush())
}

func TestInvalidBytesBecomeReplacements(t *testing.T) {
	// Invalid bytes become one replacement character for each maximal subpart.
	tok := mustNew(t, smallBPE())
	for in, want := range map[string]string{
		"\xe2\x82":                   "\ufffd",             // cut off at the end
		"\xe2\x82A":                  "\ufffdA",            // cut off by a letter
		"\xf0\x9f\x99":               "\ufffd",             //
		"\xf0\x9f\x99\xf0\x9f\x99":   "\ufffd\ufffd",       //
		"\x80\x80":                   "\ufffd\ufffd",       // nothing to continue
		"\xc0\xaf":                   "\ufffd\ufffd",       // overlong
		"\xe0\x80\x80":               "\ufffd\ufffd\ufffd", // overlong: the second byte is outside its range
		"\xed\xa0\x80":               "\ufffd\ufffd\ufffd", // surrogate
		"\xf4\x91\x92\x93\xffA\x80B": "\ufffd\ufffd\ufffd\ufffd\ufffdA\ufffdB",
		"a\xf1\x80\x80\xe1\x80\xc2b": "a\ufffd\ufffd\ufffdb",
	} {
		got, err := tok.Decode(tok.Encode(in, plain), whole)
		require.NoError(t, err)
		require.Equal(t, want, got, "%q", in)
	}
}

func TestStreamedTextEqualsWholeText(t *testing.T) {
	for name, tok := range map[string]*tokenizer.Tokenizer{"byte level": mustNew(t, smallBPE()), "sentencepiece": mustNew(t, smallSPM())} {
		for _, opts := range []tokenizer.DecodeOptions{{}, {ShowSpecial: true}, {Continues: true}} {
			ids := make([]int32, 0, 4*tok.VocabSize())
			for i := range 4 * tok.VocabSize() {
				ids = append(ids, int32(i*7919%tok.VocabSize()))
			}
			var stream strings.Builder
			d := tok.NewDecoder(opts)
			for _, id := range ids {
				text, err := d.Push(id)
				require.NoError(t, err)
				require.True(t, utf8.ValidString(text))
				stream.WriteString(text)
			}
			stream.WriteString(d.Flush())
			want, err := tok.Decode(ids, opts)
			require.NoError(t, err)
			require.Equal(t, want, stream.String(), "%s %+v", name, opts)
		}
	}
}

func TestSpecialTokensAreHiddenUnlessAskedFor(t *testing.T) {
	tok := mustNew(t, smallBPE())
	ids := tok.Encode("<|begin|>hello<tool>", tokenizer.EncodeOptions{ParseSpecial: true})
	hidden, err := tok.Decode(ids, whole)
	require.NoError(t, err)
	require.Equal(t, "hello<tool>", hidden)
	shown, err := tok.Decode(ids, tokenizer.DecodeOptions{ShowSpecial: true})
	require.NoError(t, err)
	require.Equal(t, "<|begin|>hello<tool>", shown)
}

func TestTheSpaceThatEncodingPutInFrontIsTakenAway(t *testing.T) {
	tok := mustNew(t, smallSPM())
	ids := tok.Encode("hello hello", tokenizer.EncodeOptions{AddSpecial: true})
	for name, tc := range map[string]struct {
		opts tokenizer.DecodeOptions
		want string
	}{
		"from a whole text":                     {want: "hello hello"},
		"also behind a special token":           {opts: tokenizer.DecodeOptions{ShowSpecial: true}, want: "<s>hello hello"},
		"but not where the text continues else": {opts: tokenizer.DecodeOptions{Continues: true}, want: " hello hello"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tok.Decode(ids, tc.opts)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

func TestIdsOutsideTheVocabularyAreRefused(t *testing.T) {
	tok := mustNew(t, smallBPE())
	for _, id := range []int32{-1, int32(tok.VocabSize()), 1 << 30} {
		_, err := tok.Decode([]int32{1, id}, whole)
		require.ErrorIs(t, err, tokenizer.ErrTokenID)
		require.ErrorContains(t, err, "position 1")
		_, ok := tok.Piece(id)
		require.False(t, ok)
		require.False(t, tok.IsSpecial(id))
		require.False(t, tok.IsEndOfGeneration(id))
		require.Zero(t, tok.KindOf(id))
	}
}
