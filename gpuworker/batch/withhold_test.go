package batch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestWithheldStreamsAreNoSlowReaders(t *testing.T) {
	// The reader of a withheld stream waits for another stream of its request. Its sequence yields
	// its slot and is not ended.
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 1}}, nil)
		r := Request{Prompt: prompt(5, 1), MaxTokens: 400, PromptTopN: -1}
		withheld, err := submit(l, r)
		require.NoError(t, err)
		withheld.Withhold(true)
		synctest.Wait()
		other := Request{Prompt: prompt(5, 2), MaxTokens: 3, PromptTopN: -1}
		next, err := submit(l, other)
		require.NoError(t, err)
		tokens, _, _, err := drain(t, next)
		require.NoError(t, err)
		require.Equal(t, want(other), tokens)
		time.Sleep(40 * time.Second)
		events, err := withheld.Recv(t.Context(), nil)
		require.NoError(t, err)
		withheld.Withhold(false)
		rest, _, _, err := drain(t, withheld)
		require.NoError(t, err)
		require.Len(t, rest, len(want(r))-len(events))
	})
}
