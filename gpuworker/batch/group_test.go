package batch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// several submits a request of n continuations.
func several(t *testing.T, l *Loop, r Request, n int) []*Stream {
	t.Helper()
	r.Continuations = make([]Continuation, n)
	for i := range r.Continuations {
		r.Continuations[i].OutputIndex = int32(i)
	}
	streams, err := l.Submit(r)
	require.NoError(t, err)
	return streams
}

// wantOf is what continuation i must generate.
func wantOf(r Request, i int) []int32 {
	r.Params.OutputIndex = int32(i)
	return want(r)
}

func TestContinuationsShareTheirPrompt(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		for _, n := range []int{1, 2, 15, 16, 17, 31, 32, 33, 100} {
			for _, slots := range []int{1, 3, 8} {
				t.Run(fmt.Sprintf("%d tokens, %d slots, bypass %v", n, slots, bypass), func(t *testing.T) {
					l, f := start(t, Config{Chunk: 24, Runner: engine.RunnerConfig{MaxSequences: slots}}, nil)
					r := Request{Prompt: prompt(n, 1), MaxTokens: 20, PromptTopN: -1, Bypass: bypass, Salt: "s"}
					for i, s := range several(t, l, r, 6) {
						tokens, _, _, err := drain(t, s)
						require.NoError(t, err)
						require.Equal(t, wantOf(r, i), tokens)
						require.Zero(t, s.Cached(), "nothing was cached before")
					}
					_, tokens := f.computed()
					require.LessOrEqual(t, tokens, n+5*1+6*19, "each but the first computes one token of the prompt")
					require.Eventually(t, func() bool { return l.Idle() && l.Stats().FreeBlocks == 64 }, time.Minute, time.Millisecond)
					if bypass {
						require.Zero(t, l.Stats().CachedBlocks)
					}
				})
			}
		}
	}
}

func TestGroupSurvivesItsLeader(t *testing.T) {
	// Continuations continue when the leader is cancelled half-way.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Chunk: 16}, func(f *fakeRunner) { f.gate = make(chan struct{}, 1000) })
		r := Request{Prompt: prompt(100, 1), MaxTokens: 5, PromptTopN: -1, Bypass: true}
		streams := several(t, l, r, 3)
		for range 3 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		require.Equal(t, 2, l.Stats().Waiting, "they wait for the first")
		streams[0].Cancel()
		close(f.gate)
		for i := 1; i < 3; i++ {
			tokens, _, _, err := drain(t, streams[i])
			require.NoError(t, err)
			require.Equal(t, wantOf(r, i), tokens)
		}
		synctest.Wait()
		require.Equal(t, 64, l.Stats().FreeBlocks)
	})
}

func TestGroupLeavesNoBlocks(t *testing.T) {
	// Continuations that never got a slot leave no blocks held.
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 1}}, func(f *fakeRunner) {
			f.gate = make(chan struct{}, 1000)
		})
		r := Request{Prompt: prompt(60, 1), MaxTokens: 50, PromptTopN: -1, Bypass: true}
		streams := several(t, l, r, 3)
		for range 9 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		for _, s := range streams {
			s.Cancel()
		}
		close(f.gate)
		synctest.Wait()
		require.True(t, l.Idle())
		require.Equal(t, 64, l.Stats().FreeBlocks)
	})
}

func TestSharedPromptIsDroppedFirst(t *testing.T) {
	// A group's shared prompt is dropped before a running sequence is preempted.
	synctest.Test(t, func(t *testing.T) { // where no reader is slow enough to lose a place for that
		told := &recorder{}
		l, _ := start(t, Config{Context: 160, Observer: told, Runner: engine.RunnerConfig{KVBlocks: 10, MaxSequences: 1}}, nil)
		r := Request{Prompt: prompt(33, 1), MaxTokens: 127, PromptTopN: -1, Bypass: true}
		for i, s := range several(t, l, r, 3) {
			tokens, _, _, err := drain(t, s)
			require.NoError(t, err)
			require.Equal(t, wantOf(r, i), tokens)
		}
		require.Zero(t, l.Stats().Preempted)
	})
}

func TestOnlyTheFirstContinuationScoresThePrompt(t *testing.T) {
	l, _ := start(t, Config{Chunk: 16}, nil)
	r := Request{Prompt: prompt(50, 1), MaxTokens: 4, PromptTopN: 0, Progress: true}
	for i, s := range several(t, l, r, 3) {
		tokens, scores, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, wantOf(r, i), tokens)
		if i == 0 {
			require.Len(t, scores, 49)
		} else {
			require.Empty(t, scores)
		}
	}
}

func TestContinuationsOfNoTokens(t *testing.T) {
	l, _ := start(t, Config{}, nil)
	for _, s := range several(t, l, Request{Prompt: prompt(50, 1), PromptTopN: -1}, 3) {
		tokens, _, done, err := drain(t, s)
		require.NoError(t, err)
		require.Empty(t, tokens)
		require.Equal(t, Length, done.Reason)
	}
}
