package batch

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestTextsAreNeverCut(t *testing.T) {
	// Segments are whole texts, however small the chunks are, and texts as long as a step get their turn.
	for _, chunk := range []int{0, 8, 64} {
		t.Run(fmt.Sprintf("chunks of %d", chunk), func(t *testing.T) {
			var mu sync.Mutex
			var segments, together int
			l, _ := start(t, Config{WholeTexts: true, Chunk: chunk, Runner: engine.RunnerConfig{MaxHiddenRows: 64}}, func(f *fakeRunner) {
				f.watch = func(s *engine.Step) error {
					mu.Lock()
					defer mu.Unlock()
					segments, together = segments+len(s.Segments), max(together, len(s.Segments))
					for _, seg := range s.Segments {
						if seg.FirstPosition != 0 || seg.Class != engine.Prefill {
							return fmt.Errorf("a segment begins at position %d", seg.FirstPosition)
						}
					}
					return nil
				}
			})
			lengths := []int{64, 1, 63, 2, 33, 64, 16, 17, 5, 64, 7, 30}
			for _, by := range []Pooling{PoolMean, PoolFirst, PoolLast} {
				mu.Lock()
				segments = 0
				mu.Unlock()
				var streams []*Stream
				for i, n := range lengths {
					r := pooling(n, int32(i), by)
					r.Bypass = false
					s, err := submit(l, r)
					require.NoError(t, err)
					streams = append(streams, s)
				}
				for i, s := range streams {
					_, _, done, err := drain(t, s)
					require.NoError(t, err)
					require.Equal(t, pooled(prompt(lengths[i], int32(i)), by), done.Vector, "text %d, pooling %d", i, by)
				}
				mu.Lock()
				require.Equal(t, len(lengths), segments, "one segment for each text, and none from the prefix cache")
				mu.Unlock()
			}
			if chunk == 64 {
				require.Greater(t, together, 1, "short texts share a step")
			}
		})
	}
}

func TestWholeTextsAreChecked(t *testing.T) {
	l, _ := start(t, Config{WholeTexts: true, Runner: engine.RunnerConfig{MaxHiddenRows: 40}}, nil)
	for name, r := range map[string]Request{
		"tokens":           {Prompt: prompt(3, 1), MaxTokens: 1, PromptTopN: -1},
		"scores":           {Prompt: prompt(3, 1), PromptTopN: 0},
		"choices":          {Prompt: prompt(3, 1), PromptTopN: -1, Choices: []int32{1}},
		"a decoded prompt": {Prompt: prompt(3, 1), PromptTopN: -1, Pool: PoolLast, Class: engine.Decode},
	} {
		_, err := submit(l, r)
		require.ErrorIs(t, err, engine.ErrInvalid, name)
		require.ErrorContains(t, err, "see later positions", name)
	}
	for by, most := range map[Pooling]int{PoolMean: 40, PoolFirst: 64, PoolLast: 64} {
		_, err := submit(l, pooling(most+1, 1, by))
		require.ErrorIs(t, err, ErrTooLong)
		require.ErrorContains(t, err, fmt.Sprintf("one step, which has at most %d", most))
		require.Equal(t, pooled(prompt(most, 1), by), vectorOf(t, l, pooling(most, 1, by)))
	}
}
