package generate

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// metadata is a model file's by hand.
type metadata map[string]any

func value[T any](m metadata, key string) (v T, ok bool, err error) {
	v, ok = m[key].(T)
	return v, ok, nil
}

func (m metadata) String(key string) (string, bool, error)    { return value[string](m, key) }
func (m metadata) Uint(key string) (uint64, bool, error)      { return value[uint64](m, key) }
func (m metadata) Bool(key string) (bool, bool, error)        { return value[bool](m, key) }
func (m metadata) Strings(key string) ([]string, bool, error) { return value[[]string](m, key) }
func (m metadata) Ints(key string) ([]int64, bool, error)     { return value[[]int64](m, key) }
func (m metadata) Floats(key string) ([]float64, bool, error) { return value[[]float64](m, key) }

// byteLevel is a vocabulary of all bytes, so that characters beyond ASCII are split, and an end
// token.
func byteLevel(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	var pieces []string
	var kinds []int64
	next := rune(0x100)
	for b := range 256 {
		piece := string(rune(b))
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			piece = string(next)
			next++
		}
		pieces, kinds = append(pieces, piece), append(kinds, int64(tokenizer.KindNormal))
	}
	pieces, kinds = append(pieces, "th", "the", "<|end|>"),
		append(kinds, int64(tokenizer.KindNormal), int64(tokenizer.KindNormal), int64(tokenizer.KindControl))
	tok, err := tokenizer.New(metadata{
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": pieces,
		"tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": []string{"t h", "th e"},
		"tokenizer.ggml.eos_token_id": uint64(len(pieces) - 1),
	})
	require.NoError(t, err)
	return tok
}

// sentencePiece is a vocabulary of some words that start with a space, and a piece for every byte.
func sentencePiece(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	pieces := []string{"<unk>", "<s>", "</s>"}
	kinds := []int64{int64(tokenizer.KindUnknown), int64(tokenizer.KindControl), int64(tokenizer.KindControl)}
	for b := range 256 {
		pieces, kinds = append(pieces, fmt.Sprintf("<0x%02X>", b)), append(kinds, int64(tokenizer.KindByte))
	}
	for _, p := range []string{"▁", "▁the", "▁a", "the", "a", "é", "漢", "b", "ab"} {
		pieces, kinds = append(pieces, p), append(kinds, int64(tokenizer.KindNormal))
	}
	tok, err := tokenizer.New(metadata{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.token_type": kinds,
		"tokenizer.ggml.scores": make([]float64, len(pieces)),
	})
	require.NoError(t, err)
	return tok
}

// shipped is the vocabulary of the model that comes with the project.
func shipped(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	f, err := gguf.Open(filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
	require.NoError(t, err)
	tok, err := tokenizer.New(f.Metadata())
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return tok
}

func decodersOf(tok *tokenizer.Tokenizer) NewDecoder {
	return func(special bool) TextDecoder {
		return tok.NewDecoder(tokenizer.DecodeOptions{ShowSpecial: special, Continues: true})
	}
}
