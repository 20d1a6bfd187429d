package tokenizer_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// FuzzByteLevelComesBack encodes any bytes with every family of pre-tokenizer and wants the same
// bytes back.
func FuzzByteLevelComesBack(f *testing.F) {
	names := tokenizer.Pretokenizers()
	toks := make([]*tokenizer.Tokenizer, len(names))
	for i, name := range names {
		toks[i] = mustNew(f, smallBPE().with(metadata{"tokenizer.ggml.pre": name}))
	}
	for i, text := range []string{"", "hello world", "I'll we'VE 'd", "<tool>> <|im_end|>", "\xff\xe2\x82", "12345 ½ ٣", "a\u0301 中文カ한", " \t\r\n\u3000 x", "🙂👩‍🚀"} {
		f.Add(text, uint8(i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, text string, which uint8, parse bool) {
		tok := toks[int(which)%len(toks)]
		ids := tok.Encode(text, tokenizer.EncodeOptions{ParseSpecial: parse})
		var raw []byte
		for _, id := range ids {
			p, ok := tok.Piece(id)
			require.True(t, ok)
			raw = append(raw, p...)
		}
		require.Equal(t, text, string(raw))
		got, err := tok.Decode(ids, tokenizer.DecodeOptions{ShowSpecial: true})
		require.NoError(t, err)
		require.True(t, utf8.ValidString(got))
		if utf8.ValidString(text) {
			require.Equal(t, text, got)
		}
	})
}

// FuzzSentencePieceNeverFails encodes any bytes. Valid text comes back, except the character that
// stands for a space.
func FuzzSentencePieceNeverFails(f *testing.F) {
	tok := mustNew(f, smallSPM().with(metadata{"tokenizer.ggml.token_type": smallSPM()["tokenizer.ggml.token_type"]}))
	for _, text := range []string{"", " hello", "hello▁hel", "\xff\xfe", "<s>[INST]<0x41>", "aaaaaaa é"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := tok.Decode(tok.Encode(text, plain), whole)
		require.NoError(t, err)
		require.True(t, utf8.ValidString(got))
	})
}
