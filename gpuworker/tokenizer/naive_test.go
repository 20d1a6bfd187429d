package tokenizer_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/tokenizer"
)

// naiveSPM merges the best pair of the whole text, one after another, looking at every pair each
// time.
func naiveSPM(ids map[string]int32, scores []float64, text string) []int32 {
	var parts []string
	for _, r := range "▁" + strings.ReplaceAll(text, " ", "▁") {
		parts = append(parts, string(r))
	}
	for {
		best := -1
		for i := 0; i+1 < len(parts); i++ {
			id, ok := ids[parts[i]+parts[i+1]]
			if ok && (best < 0 || scores[id] > scores[ids[parts[best]+parts[best+1]]]) {
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
		if id, ok := ids[p]; ok {
			out = append(out, id)
			continue
		}
		for _, b := range []byte(p) {
			out = append(out, 3+int32(b)) // where both vocabularies keep their byte pieces
		}
	}
	return out
}

func TestSentencePieceEqualsTheNaiveWay(t *testing.T) {
	check := func(t *testing.T, src tokenizer.Source, words []string) {
		t.Helper()
		tok := mustNew(t, src)
		tokens, _, err := src.Strings("tokenizer.ggml.tokens")
		require.NoError(t, err)
		scores, _, err := src.Floats("tokenizer.ggml.scores")
		require.NoError(t, err)
		ids := map[string]int32{}
		for i, p := range tokens {
			if tok.KindOf(int32(i)) == tokenizer.KindNormal {
				ids[p] = int32(i)
			}
		}
		rng := rand.New(rand.NewPCG(7, 8))
		for range 400 {
			var b strings.Builder
			for range 1 + rng.IntN(12) {
				b.WriteString(words[rng.IntN(len(words))])
			}
			require.Equal(t, naiveSPM(ids, scores, b.String()), tok.Encode(b.String(), plain), "%q", b.String())
		}
	}
	t.Run("small", func(t *testing.T) {
		check(t, smallSPM(), []string{"hello", "hel", "lo", " ", "h", "e", "l", "o", "a", "aa", "s", "<", ">", "x", "é", "\n"})
	})
	t.Run("llama", func(t *testing.T) {
		f, err := gguf.Open(shared(t, "ggml-vocab-llama-spm.gguf"))
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		check(t, f.Metadata(), []string{"the", "quick", " ", "  ", "ing", "Z", "qu", "x", "1", "23", ".", ",", "\n", "\t", "é", "ß", "中", "ка", "🙂", "un", "believ", "able", "=", "==", "<s", "s>", "_", "▁"})
	})
}

func TestEncodingAtOnceGivesWhatEncodingAloneGives(t *testing.T) {
	for _, tok := range []*tokenizer.Tokenizer{stories(t), mustNew(t, smallSPM())} {
		text := prose[:20_000]
		want := tok.Encode(text, plain)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 {
					if got := tok.Encode(text, plain); len(got) != len(want) || got[len(got)-1] != want[len(want)-1] {
						t.Error("another result beside others")
					}
				}
			})
		}
		wg.Wait()
	}
}
