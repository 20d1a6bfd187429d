package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/gguf"
	"github.com/millrace/millrace/gpuworker/guide"
	"github.com/millrace/millrace/gpuworker/tokenizer"
	"github.com/millrace/millrace/internal/repotest"
)

func testGrammars() *grammars {
	return &grammars{vocabulary: func() *guide.Vocabulary {
		return guide.NewVocabulary(128, func(id int32) []byte { return []byte{byte(id)} }, 1<<20)
	}}
}

// Requests with one source share one compilation, also one that fails.
func TestGrammarsCompileOnce(t *testing.T) {
	g := testGrammars()
	for _, source := range []guide.Source{{Kind: guide.Regex, Text: "a+"}, {Kind: guide.Regex, Text: "(a+"}} {
		var slots atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				got, err := g.get(t.Context(), source, func() (func(), error) {
					slots.Add(1)
					return func() {}, nil
				})
				require.NotEqual(t, err == nil, got == nil)
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, slots.Load())
	}
}

// A caller that gets no slot leaves the compilation to the next one.
func TestGrammarsOutliveACallerWithoutSlot(t *testing.T) {
	g, none := testGrammars(), errors.New("no slot")
	source := guide.Source{Kind: guide.Regex, Text: "a+"}
	_, err := g.get(t.Context(), source, func() (func(), error) { return nil, none })
	require.ErrorIs(t, err, none)
	require.Empty(t, g.mu.known)
	got, err := g.get(t.Context(), source, func() (func(), error) { return func() {}, nil })
	require.NoError(t, err)
	require.NotNil(t, got)
}

func TestGrammarsEndWaitingWithTheContext(t *testing.T) {
	g := testGrammars()
	source := guide.Source{Kind: guide.Regex, Text: "a+"}
	_, first := g.find(keyOf(source))
	require.True(t, first)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := g.get(ctx, source, nil)
	require.ErrorIs(t, err, context.Canceled)
}

func TestGrammarsAreBoundedInBytes(t *testing.T) {
	g := testGrammars()
	for i := range 60 {
		_, err := g.get(t.Context(), guide.Source{Kind: guide.Regex, Text: strings.Repeat("a", i+1)}, func() (func(), error) { return func() {}, nil })
		require.NoError(t, err)
	}
	require.LessOrEqual(t, g.mu.bytes, grammarBytes)
	require.Len(t, g.mu.known, g.mu.order.Len())
	require.Less(t, len(g.mu.known), 60)
	require.NotEqual(t, keyOf(guide.Source{Kind: guide.Choice, Options: []string{"ab"}}), keyOf(guide.Source{Kind: guide.Choice, Options: []string{"a", "b"}}))
}

// vocabularyFile is a tokenizer of the reference vocabularies; without them its test is skipped.
func vocabularyFile(t *testing.T, name string) string {
	t.Helper()
	root := os.Getenv("MILLRACE_SHARED")
	if root == "" {
		root = filepath.Join(repotest.Path("."), "..", "shared")
	}
	path := filepath.Join(root, "vocab", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is missing: set MILLRACE_SHARED to a folder with vocab/%s", path, name)
	}
	return path
}

// Along random texts the masks of real vocabularies, SentencePiece and byte-level, have exactly the tokens
// whose bytes, tried alone, continue the text. Control tokens are in none, end tokens where a text may end.
func TestMasksOfRealVocabularies(t *testing.T) {
	source := guide.Source{Kind: guide.JSONSchema, Text: `{"type":"object","properties":{"name":{"type":"string","maxLength":40},
		"n":{"type":"integer","minimum":-5,"maximum":70}},"required":["name"]}`}
	for name, path := range map[string]func(*testing.T) string{
		"stories": func(*testing.T) string { return repotest.Path("testdata/models/stories-5m-q8_0.gguf") },
		"gpt-2":   func(t *testing.T) string { t.Helper(); return vocabularyFile(t, "ggml-vocab-gpt-2.gguf") },
	} {
		t.Run(name, func(t *testing.T) {
			f, err := gguf.Open(path(t))
			require.NoError(t, err)
			tok, err := tokenizer.New(f.Metadata())
			require.NoError(t, err)
			require.NoError(t, f.Close())
			ends := tok.EndOfGeneration()
			require.NotEmpty(t, ends)
			v := newGrammars(tok, Facts{Vocabulary: tok.VocabSize() + 40, EndIDs: ends}).vocabulary()
			g, err := guide.Compile(source, v)
			require.NoError(t, err)
			alone, err := guide.Compile(source, testGrammars().vocabulary())
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(1, 2))
			s, at, mask := g.Start(ends), alone.Start(nil), make([]uint32, v.Words())
			for range 25 {
				require.NoError(t, s.Mask(mask))
				var allowed []int32
				for id := range int32(32 * len(mask)) {
					got := mask[id>>5]&(1<<(id&31)) != 0
					piece, ok := tok.Piece(id)
					var want bool
					switch _, err := at.AdvanceText(string(piece)); {
					case !ok || tok.IsSpecial(id):
						require.Equal(t, got, ok && at.Complete() && slices.Contains(ends, id), "token %d", id)
						continue
					case slices.Contains(ends, id):
						want = at.Complete()
					default:
						want = len(piece) > 0 && err == nil
					}
					require.Equal(t, want, got, "token %d, %q", id, piece)
					if got && want && !slices.Contains(ends, id) {
						allowed = append(allowed, id)
					}
				}
				if len(allowed) == 0 {
					break
				}
				id := allowed[rng.IntN(len(allowed))]
				s, err = s.Advance(id)
				require.NoError(t, err)
				piece, _ := tok.Piece(id)
				at, err = at.AdvanceText(string(piece))
				require.NoError(t, err)
			}
		})
	}
}
