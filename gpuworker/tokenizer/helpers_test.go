package tokenizer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// metadata is a Source made by hand; a value of the wrong Go type is absent.
type metadata map[string]any

func (m metadata) String(key string) (v string, ok bool, err error) {
	v, ok = m[key].(string)
	return v, ok, m.failure(key)
}
func (m metadata) Uint(key string) (v uint64, ok bool, err error) {
	v, ok = m[key].(uint64)
	return v, ok, m.failure(key)
}
func (m metadata) Bool(key string) (v, ok bool, err error) {
	v, ok = m[key].(bool)
	return v, ok, m.failure(key)
}
func (m metadata) Strings(key string) (v []string, ok bool, err error) {
	v, ok = m[key].([]string)
	return v, ok, m.failure(key)
}
func (m metadata) Ints(key string) (v []int64, ok bool, err error) {
	v, ok = m[key].([]int64)
	return v, ok, m.failure(key)
}
func (m metadata) Floats(key string) (v []float64, ok bool, err error) {
	v, ok = m[key].([]float64)
	return v, ok, m.failure(key)
}

// failure makes an error value stand for a key that cannot be read.
func (m metadata) failure(key string) error {
	err, _ := m[key].(error)
	return err
}

// with returns a copy with some values changed; nil removes a key.
func (m metadata) with(changes metadata) metadata {
	out := metadata{}
	for k, v := range m {
		out[k] = v
	}
	for k, v := range changes {
		if out[k] = v; v == nil {
			delete(out, k)
		}
	}
	return out
}

const (
	normal = int64(tokenizer.KindNormal)
	unk    = int64(tokenizer.KindUnknown)
	ctrl   = int64(tokenizer.KindControl)
	user   = int64(tokenizer.KindUserDefined)
	bytek  = int64(tokenizer.KindByte)
)

// smallBPE is a byte-level vocabulary of all bytes, a few merges and specials of each kind.
func smallBPE() metadata {
	var pieces []string
	var kinds []int64
	add := func(kind int64, ps ...string) {
		for _, p := range ps {
			pieces, kinds = append(pieces, p), append(kinds, kind)
		}
	}
	next := rune(0x100)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			add(normal, string(rune(b)))
			continue
		}
		add(normal, string(next))
		next++
	}
	add(normal, "he", "ll", "hell", "hello", "Ġw", "Ġwo", "aa", "aaaa")
	add(ctrl, "<|begin|>", "<|im_end|>")
	add(user, "<tool>", "<tool>>")
	return metadata{
		"tokenizer.ggml.model":        "gpt2",
		"tokenizer.ggml.pre":          "gpt-2",
		"tokenizer.ggml.tokens":       pieces,
		"tokenizer.ggml.token_type":   kinds,
		"tokenizer.ggml.merges":       []string{"h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "a a", "aa aa"},
		"tokenizer.ggml.bos_token_id": uint64(264),
		"tokenizer.ggml.eos_token_id": uint64(265),
	}
}

// smallSPM is a SentencePiece vocabulary with byte fallback.
func smallSPM() metadata {
	pieces := []string{"<unk>", "<s>", "</s>"}
	kinds := []int64{unk, ctrl, ctrl}
	scores := []float64{0, 0, 0}
	for b := range 256 {
		const hex = "0123456789ABCDEF"
		pieces, kinds, scores = append(pieces, "<0x"+hex[b>>4:b>>4+1]+hex[b&15:b&15+1]+">"), append(kinds, bytek), append(scores, 0)
	}
	for i, p := range []string{"▁h", "el", "lo", "▁hello", "▁hel", "▁", "h", "e", "l", "o", "a", "aa", "s", "<s", "s>", "<", ">"} {
		pieces, kinds, scores = append(pieces, p), append(kinds, normal), append(scores, -float64(i))
	}
	pieces, kinds, scores = append(pieces, "[INST]"), append(kinds, user), append(scores, 0)
	return metadata{
		"tokenizer.ggml.model":      "llama",
		"tokenizer.ggml.tokens":     pieces,
		"tokenizer.ggml.token_type": kinds,
		"tokenizer.ggml.scores":     scores,
	}
}

func mustNew(t testing.TB, src tokenizer.Source) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.New(src)
	require.NoError(t, err)
	return tok
}

// open reads the tokenizer of a model file.
func open(t testing.TB, path string) *tokenizer.Tokenizer {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	return mustNew(t, f.Metadata())
}

// stories is the tokenizer of the model that comes with the project.
func stories(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	return open(t, filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
}

// shared returns the path of a file among the reference vocabularies, or skips.
func shared(t testing.TB, name string) string {
	t.Helper()
	root := os.Getenv("MILLRACE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	path := filepath.Join(root, "vocab", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is missing: set MILLRACE_SHARED to a folder with vocab/ggml-vocab-*.gguf, .inp and .out of llama.cpp's models folder", path)
	}
	return path
}

// pieces shows ids as text with bars between, for messages and comparisons.
func pieces(t testing.TB, tok *tokenizer.Tokenizer, ids []int32) string {
	t.Helper()
	var out []string
	for _, id := range ids {
		p, ok := tok.Piece(id)
		require.True(t, ok, "id %d", id)
		out = append(out, string(p))
	}
	return strings.Join(out, "|")
}
