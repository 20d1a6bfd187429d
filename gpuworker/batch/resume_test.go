package batch

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// resume submits a request of which k tokens were generated before.
func resume(t *testing.T, l *Loop, r Request, k int) *Stream {
	t.Helper()
	r.Continuations = []Continuation{{OutputIndex: r.Params.OutputIndex, Resumed: want(r)[:k]}}
	streams, err := l.Submit(r)
	require.NoError(t, err)
	return streams[0]
}

func TestResumedContinuationContinuesAtItsToken(t *testing.T) {
	for k := 1; k <= 40; k++ {
		for _, chunk := range []int{1, 7, 64} {
			t.Run(fmt.Sprintf("%d tokens by chunks of %d", k, chunk), func(t *testing.T) {
				l, f := start(t, Config{Chunk: chunk}, nil)
				r := Request{
					Prompt: prompt(20, 1), MaxTokens: 41, PromptTopN: -1, Progress: true,
					Params: engine.SlotParams{Seed: 3, OutputIndex: 2, MinTokens: 5},
				}
				tokens, scores, done, err := drain(t, resume(t, l, r, k))
				require.NoError(t, err)
				require.Equal(t, want(r)[k:], tokens, "what was resumed is not delivered again")
				require.Empty(t, scores)
				require.Equal(t, 41, done.Generated, "resumed tokens count")
				require.EqualValues(t, 41-k, l.Stats().GeneratedTokens)
				require.EqualValues(t, 20, l.Stats().PrefilledTokens)
				_, computed := f.computed()
				require.Equal(t, 20+40, computed)
				steps := (20+chunk-1)/chunk + (k+chunk-1)/chunk + 41 - k - 1
				took, _ := f.computed()
				require.Equal(t, steps, took, "resumed tokens are replayed several a step, and the last of them gives the first sample")
			})
		}
	}
}

func TestResumedContinuationScoresItsPrompt(t *testing.T) {
	// A resumed continuation scores its prompt and reports its progress.
	l, _ := start(t, Config{Chunk: 8}, nil)
	r := Request{Prompt: prompt(20, 1), MaxTokens: 20, PromptTopN: 0, Progress: true}
	s := resume(t, l, r, 10)
	var progress []int
	scored, tokens := 0, 0
	for {
		events, err := s.Recv(t.Context(), nil)
		require.NoError(t, err)
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if e.Prefilled > 0 {
				progress = append(progress, e.Prefilled)
			}
			scored += len(e.Scored)
			if e.Token != nil {
				tokens++
			}
		}
	}
	require.Equal(t, []int{8, 16, 20}, progress)
	require.Equal(t, 19, scored)
	require.Equal(t, 10, tokens)
}

func TestResumedContinuationHitsThePrefix(t *testing.T) {
	// A resumed continuation finds its prompt in the prefix cache.
	for name, oneClass := range map[string]bool{"two classes": false, "one class": true} {
		t.Run(name, func(t *testing.T) {
			l, f := start(t, Config{OneClass: oneClass}, func(f *fakeRunner) { f.oneClass = oneClass })
			r := Request{Prompt: prompt(40, 1), MaxTokens: 60, PromptTopN: -1}
			run(t, l, r)
			_, before := f.computed()
			s := resume(t, l, r, 50)
			tokens, _, _, err := drain(t, s)
			require.NoError(t, err)
			require.Equal(t, want(r)[50:], tokens)
			require.Equal(t, 40, s.Cached(), "of its prompt")
			_, after := f.computed()
			require.Equal(t, 90-80+9, after-before, "the decode class computed the same before")
		})
	}
}

func TestAContinuationThatCannotBeResumedIsRefused(t *testing.T) {
	l, _ := start(t, Config{Context: 64}, nil)
	for name, tc := range map[string]struct {
		resumed, most int
		want          error
	}{
		"all of its tokens are there": {5, 5, engine.ErrInvalid},
		"more than all":               {6, 5, engine.ErrInvalid},
		"none left in the context":    {44, 100, engine.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := l.Submit(Request{
				Prompt: prompt(20, 1), MaxTokens: tc.most, PromptTopN: -1, Continuations: []Continuation{{Resumed: prompt(tc.resumed, 2)}},
			})
			require.ErrorIs(t, err, tc.want)
			require.ErrorContains(t, err, fmt.Sprint(tc.resumed))
		})
	}
}
