package batch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestTimingsSayWhereASequencesTimeWent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{}, func(f *fakeRunner) { f.lasts = func(*engine.Step) time.Duration { return time.Second } })
		defer stop(l)
		s, err := submit(l, Request{Prompt: prompt(20, 1), MaxTokens: 5, PromptTopN: -1})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, Timings{Queue: 1}, s.Timings(), "it has its place, at once, and no event yet")
		_, _, _, err = drain(t, s)
		require.NoError(t, err)
		require.Equal(t, Timings{Prefill: time.Second, Decode: 4 * time.Second, Steps: 5, StepTime: 5 * time.Second}, s.Timings())
	})
}
