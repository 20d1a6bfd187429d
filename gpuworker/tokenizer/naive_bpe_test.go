package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dlclark/regexp2/v2"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
)

// naiveBPE is byte-level BPE in its simplest form: words by regular expressions, single bytes, and
// then the best pair of the whole word, one after another.
type naiveBPE struct {
	patterns []*regexp2.Regexp
	ids      map[string]int32 // plain pieces
	ranks    map[[2]string]int
	whole    bool // a word that is a piece is taken whole
}

func newNaiveBPE(t *testing.T, src Source, patterns []*regexp2.Regexp, whole bool) *naiveBPE {
	t.Helper()
	pieces, _, err := src.Strings(keyTokens)
	require.NoError(t, err)
	kinds, _, err := src.Ints(keyTypes)
	require.NoError(t, err)
	merges, _, err := src.Strings(keyMerges)
	require.NoError(t, err)
	n := &naiveBPE{patterns: patterns, ids: map[string]int32{}, ranks: map[[2]string]int{}, whole: whole}
	for i, p := range pieces {
		if len(kinds) == 0 || kinds[i] == int64(KindNormal) {
			n.ids[p] = int32(i)
		}
	}
	for i, m := range merges {
		left, right, _ := strings.Cut(m, " ")
		n.ranks[[2]string{left, right}] = i
	}
	return n
}

func (n *naiveBPE) encode(t *testing.T, text string) []int32 {
	t.Helper()
	ids := []int32{}
	for _, word := range splitByPatterns(t, n.patterns, []string{text}) {
		var parts []string
		for _, b := range []byte(word) {
			parts = append(parts, string(runeOfByte[b]))
		}
		if id, ok := n.ids[strings.Join(parts, "")]; ok && n.whole {
			ids = append(ids, id)
			continue
		}
		for {
			best, rank := -1, 0
			for i := 0; i+1 < len(parts); i++ {
				if r, ok := n.ranks[[2]string{parts[i], parts[i+1]}]; ok && (best < 0 || r < rank) {
					best, rank = i, r
				}
			}
			if best < 0 {
				break
			}
			parts[best] += parts[best+1]
			parts = slices.Delete(parts, best+1, best+2)
		}
		for _, p := range parts {
			id, ok := n.ids[p]
			require.True(t, ok, "piece %q of %q", p, text)
			ids = append(ids, id)
		}
	}
	return ids
}

// under is a vocabulary under another pre-tokenizer.
type under struct {
	Source
	pre string
}

func (u under) String(key string) (string, bool, error) {
	if key == keyPre {
		return u.pre, true, nil
	}
	return u.Source.String(key)
}

// scraps are what random texts are made of: words that vocabularies hold, and the characters on
// which patterns differ.
var scraps = append([]string{
	"the", " the", "ing", " quick", "Hello", " world", "return", "    ", "\n\n", "\t\t", "2024", "12345678", " don't", "I'LL", "->", "!=", "...", "http://",
	" straße", "Ελλάδα", "Привет", " мир", "你好世界", "こんにちは", "안녕", "مرحبا", "हिन्दी", "ไทย", "👩‍🚀", "e\u0301",
}, alphabet...)

func randomText(rng *rand.Rand, scraps []string) string {
	var b strings.Builder
	for range 1 + rng.IntN(20) {
		b.WriteString(scraps[rng.IntN(len(scraps))])
	}
	return b.String()
}

func openSource(t *testing.T, path string) Source {
	t.Helper()
	f, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f.Metadata()
}

// writable leaves out the bytes that a vocabulary lacks: falcon's has no vertical tab.
func writable(tok *Tokenizer, text string) string {
	b, ok := tok.coder.(*bpe)
	if !ok {
		return text
	}
	kept := make([]byte, 0, len(text))
	for _, c := range []byte(text) {
		if b.byteSym[c] != None {
			kept = append(kept, c)
		}
	}
	return string(kept)
}

func checkAgainstNaive(t *testing.T, src Source, pre string, patterns []*regexp2.Regexp, rounds int) {
	t.Helper()
	tok, err := New(src)
	require.NoError(t, err)
	naive := newNaiveBPE(t, src, patterns, pretokenizers[pre].ignoreMerges)
	rng := rand.New(rand.NewPCG(9, 10))
	for range rounds {
		text := randomText(rng, scraps)
		if _, _, id := tok.always.find(text, 0, new(spans)); id != None {
			continue // the naive encoder has no user-defined pieces
		}
		text = writable(tok, text)
		require.Equal(t, naive.encode(t, text), tok.Encode(text, EncodeOptions{}), "%q", text)
	}
}

func TestByteLevelEqualsTheNaiveEncoder(t *testing.T) {
	// Byte-level encoding equals the naive one with every pre-tokenizer.
	stories := openSource(t, filepath.Join("..", "..", "testdata", "models", "stories-5m-q8_0.gguf"))
	for pre, patterns := range patternsOf(t) {
		t.Run(pre, func(t *testing.T) { checkAgainstNaive(t, under{stories, pre}, pre, patterns, 120) })
	}
}

func TestPublishedVocabulariesEqualTheNaiveOne(t *testing.T) {
	// Published byte-level vocabularies encode like the naive encoder.
	for _, path := range publishedFiles(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			src := openSource(t, path)
			pre, _, err := src.String(keyPre)
			require.NoError(t, err)
			if model, _, err := src.String(keyModel); err != nil || model != modelBPE {
				t.Skipf("tokenizer model %q is not byte-level", model)
			}
			if pre == "" {
				pre = "default"
			}
			checkAgainstNaive(t, src, pre, patternsOf(t)[pre], 300)
		})
	}
}

func TestPublishedVocabulariesGiveEveryTextBack(t *testing.T) {
	for _, path := range publishedFiles(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			src := openSource(t, path)
			if model, _, err := src.String(keyModel); err != nil || model != modelBPE && model != modelSPM {
				t.Skipf("tokenizer model %q is not served", model)
			}
			tok, err := New(src)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(11, 12))
			for range 300 {
				text := writable(tok, randomText(rng, scraps))
				back, err := tok.Decode(tok.Encode(text, EncodeOptions{}), DecodeOptions{})
				require.NoError(t, err)
				require.Equal(t, text, back)
			}
		})
	}
}

// publishedFiles lists the public vocabularies that are there, or skips.
func publishedFiles(t *testing.T) []string {
	t.Helper()
	root := os.Getenv("MILLRACE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	paths, err := filepath.Glob(filepath.Join(root, "vocab", "ggml-vocab-*.gguf"))
	require.NoError(t, err)
	if len(paths) == 0 {
		t.Skipf("no public vocabularies under %s: set MILLRACE_SHARED to a folder with vocab/ggml-vocab-*.gguf", root)
	}
	return paths
}
