package model

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// free is a slot that nobody waits for.
func free(context.Context) (func(), error) { return func() {}, nil }

// Requests with one source share one compilation, also one that fails.
func TestGrammarsCompileOnce(t *testing.T) {
	g := testGrammars()
	for _, source := range []guide.Source{{Kind: guide.Regex, Text: "a+"}, {Kind: guide.Regex, Text: "(a+"}} {
		var grammars sync.Map
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				got, err := g.get(t.Context(), "", source, free)
				require.NotEqual(t, err == nil, got == nil)
				grammars.Store([2]any{got, err}, true)
			})
		}
		wg.Wait()
		different := 0
		grammars.Range(func(any, any) bool { different++; return true })
		require.Equal(t, 1, different)
		_, err := g.get(t.Context(), "", source, nil)
		require.Equal(t, source.Text != "a+", err != nil, "a known result needs no slot")
	}
}

// Sources that are shared are digested once: written out, this one has 2^60 terms.
func TestDigestsOfSharedSources(t *testing.T) {
	nest := func(text string) guide.Source {
		term := guide.Term{Text: text}
		for range 60 {
			inner := term
			below := &guide.Source{Kind: guide.Composed, Term: &inner}
			term = guide.Term{Op: guide.Sequence, Of: []guide.Term{{Op: guide.Nested, Source: below}, {Op: guide.Nested, Source: below}}}
		}
		return guide.Source{Kind: guide.Composed, Term: &term}
	}
	once, again := keyOf(nest("a")), keyOf(nest("a"))
	require.Equal(t, once, again)
	require.NotEqual(t, keyOf(nest("a")), keyOf(nest("b")))
	a, b := &guide.Source{Kind: guide.Regex, Text: "a"}, &guide.Source{Kind: guide.Regex, Text: "b"}
	of := func(sources ...*guide.Source) grammarKey {
		term := guide.Term{Op: guide.Sequence}
		for _, s := range sources {
			term.Of = append(term.Of, guide.Term{Op: guide.Nested, Source: s})
		}
		return keyOf(guide.Source{Kind: guide.Composed, Term: &term})
	}
	require.NotEqual(t, of(a, b, a), of(a, b, b))
	free := func(t guide.Term) grammarKey { return keyOf(guide.Source{Kind: guide.Composed, Term: &t}) }
	require.NotEqual(t, free(guide.Term{Op: guide.Free, Without: []string{"a"}}), free(guide.Term{Op: guide.Free, NotFirst: []string{"a"}}))
}

// A caller that gets no slot leaves the compilation to the next one.
func TestGrammarsOutliveACallerWithoutSlot(t *testing.T) {
	g, none := testGrammars(), errors.New("no slot")
	source := guide.Source{Kind: guide.Regex, Text: "a+"}
	_, err := g.get(t.Context(), "", source, func(context.Context) (func(), error) { return nil, none })
	require.ErrorIs(t, err, none)
	require.Empty(t, g.mu.known)
	got, err := g.get(t.Context(), "", source, free)
	require.NoError(t, err)
	require.NotNil(t, got)
}

func TestGrammarsEndWaitingWithTheContext(t *testing.T) {
	g := testGrammars()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := g.get(ctx, "", guide.Source{Kind: guide.Regex, Text: "a+"}, func(ctx context.Context) (func(), error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, g.mu.known)
}

// A tenant whose slots are taken delays its own requests, also where another tenant has the same source.
// The one that waits stops waiting when the other has the result.
func TestGrammarsNeedNoSlotOfAnotherTenant(t *testing.T) {
	g := testGrammars()
	source := guide.Source{Kind: guide.Regex, Text: "a+"}
	waits, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := g.get(t.Context(), "busy", source, func(ctx context.Context) (func(), error) {
			close(waits)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		ended <- err
	}()
	<-waits
	got, err := g.get(t.Context(), "other", source, free)
	require.NoError(t, err)
	require.NotNil(t, got)
	require.NoError(t, <-ended)
}

// The grammars of all tenants are bounded together, and a tenant with many drops its own.
func TestGrammarsAreBoundedByTenant(t *testing.T) {
	g := testGrammars()
	source := func(i int) guide.Source {
		return guide.Source{Kind: guide.Choice, Options: []string{strings.Repeat("a", 200<<10) + strconv.Itoa(i)}}
	}
	own, err := g.get(t.Context(), "few", source(-1), free)
	require.NoError(t, err)
	for i := range 400 {
		_, err := g.get(t.Context(), "many", source(i), free)
		require.NoError(t, err)
	}
	all := 0
	for _, e := range g.mu.known {
		all += e.Value.(*compilation).bytes()
	}
	require.LessOrEqual(t, all, grammarBytes)
	require.Len(t, g.mu.known, g.mu.order.Len())
	require.Less(t, len(g.mu.known), 400)
	again, err := g.get(t.Context(), "few", source(-1), nil)
	require.NoError(t, err)
	require.Same(t, own, again)
	require.NotEqual(t, keyOf(guide.Source{Kind: guide.JSONSchema}), keyOf(guide.Source{Kind: guide.JSONSchema, AnyOrder: true}))
	require.NotEqual(t, keyOf(guide.Source{Kind: guide.Choice, Options: []string{"ab"}}), keyOf(guide.Source{Kind: guide.Choice, Options: []string{"a", "b"}}))
}

// Refusals are few enough that each call can walk over all: a tenant with endless bad sources slows no other.
func TestRememberedRefusalsAreFew(t *testing.T) {
	g := testGrammars()
	for i := range 3000 {
		_, err := g.get(t.Context(), "many", guide.Source{Kind: guide.Regex, Text: "(" + strconv.Itoa(i)}, free)
		require.Error(t, err)
	}
	require.LessOrEqual(t, len(g.mu.known), 1<<11)
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
