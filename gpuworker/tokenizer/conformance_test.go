package tokenizer_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// published are the vocabularies of this package's kinds that llama.cpp publishes with cases. Those
// that are not at hand are skipped by name.
var published = []string{
	"command-r", "dbrx", "deepseek-coder", "deepseek-llm", "deepseek-r1-qwen", "falcon", "gpt-2", "gpt-4o", "llama-bpe",
	"llama-spm", "llama4", "mpt", "olmo", "phi-2", "phi-3", "qwen2", "refact", "smaug-bpe", "starcoder",
}

func TestReferenceVocabularies(t *testing.T) {
	// Reference vocabularies encode every case as the reference does.
	for _, name := range published {
		t.Run(name, func(t *testing.T) {
			path := shared(t, "ggml-vocab-"+name+".gguf")
			tok := open(t, path)
			inp, err := os.ReadFile(path + ".inp")
			require.NoError(t, err)
			out, err := os.ReadFile(path + ".out")
			require.NoError(t, err)
			texts := strings.Split(strings.TrimSuffix(string(inp), "\n__ggml_vocab_test__\n"), "\n__ggml_vocab_test__\n")
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			require.Len(t, texts, len(lines))
			require.Greater(t, len(texts), 40)
			for i, text := range texts {
				want := []int32{}
				for _, f := range strings.Fields(lines[i]) {
					id, err := strconv.Atoi(f)
					require.NoError(t, err)
					want = append(want, int32(id))
				}
				got := tok.Encode(text, plain)
				require.Equal(t, want, got, "case %d %q is %s", i, text, pieces(t, tok, got))
				back, err := tok.Decode(got, whole)
				require.NoError(t, err)
				require.Equal(t, text, back, "case %d", i)
			}
		})
	}
}
