package batch

import (
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// pooled returns the vector that a prompt must have.
func pooled(prompt []int32, by Pooling) []float32 {
	n := len(prompt)
	first, last := 0, n-1
	switch by {
	case PoolFirst:
		last = 0
	case PoolLast:
		first = n - 1
	case NoPool, PoolMean:
	}
	sum := make([]float64, 4)
	for at := first; at <= last; at++ {
		for i, v := range fakeHidden(prompt[:at+1]) {
			sum[i] += float64(v)
		}
	}
	out := make([]float32, 4)
	for i := range sum {
		out[i] = float32(sum[i] / float64(last-first+1))
	}
	return out
}

func pooling(n int, seed int32, by Pooling) Request {
	return Request{Prompt: prompt(n, seed), PromptTopN: -1, Pool: by, Bypass: true}
}

func vectorOf(t *testing.T, l *Loop, r Request) []float32 {
	t.Helper()
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, done, err := drain(t, s)
	require.NoError(t, err)
	require.Empty(t, tokens)
	return done.Vector
}

func TestAVectorDoesNotDependOnItsBatch(t *testing.T) {
	for name, runner := range map[string]engine.RunnerConfig{
		"whole":              {MaxHiddenRows: 64},
		"in steps of 7":      {MaxHiddenRows: 64, MaxBatchedTokens: 7},
		"with 3 hidden rows": {MaxHiddenRows: 3},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := start(t, Config{Runner: runner}, nil)
			for _, by := range []Pooling{PoolMean, PoolFirst, PoolLast} {
				require.Equal(t, pooled(prompt(50, 3), by), vectorOf(t, l, pooling(50, 3, by)), "alone, pooling %d", by)
				var streams []*Stream
				for i := range 9 { // beside generations, all at once
					r := pooling(11+7*i, int32(i), by)
					if i%3 == 2 {
						r = Request{Prompt: prompt(20, int32(i)), MaxTokens: 20, PromptTopN: -1}
					}
					s, err := submit(l, r)
					require.NoError(t, err)
					streams = append(streams, s)
				}
				for i, s := range streams {
					tokens, _, done, err := drain(t, s)
					require.NoError(t, err)
					if i%3 == 2 {
						require.Len(t, tokens, 20)
						continue
					}
					require.Equal(t, pooled(prompt(11+7*i, int32(i)), by), done.Vector, "text %d, pooling %d", i, by)
				}
			}
		})
	}
}

func TestAVectorSurvivesPreemption(t *testing.T) {
	// 12 blocks hold one text of 150 tokens and little more. It needs 19 steps and gets 6 of them
	// before urgent requests arrive, which preempt it.
	gate := make(chan struct{}, 4096)
	l, f := start(t, Config{Runner: engine.RunnerConfig{KVBlocks: 12, MaxHiddenRows: 8, MaxBatchedTokens: 16}, Chunk: 8}, func(f *fakeRunner) {
		f.gate = gate
	})
	open := func(steps int) {
		for range steps {
			gate <- struct{}{}
		}
	}
	for _, by := range []Pooling{PoolMean, PoolFirst, PoolLast} {
		s, err := submit(l, pooling(150, 5, by))
		require.NoError(t, err)
		before, _ := f.computed()
		open(6)
		require.Eventually(t, func() bool { steps, _ := f.computed(); return steps >= before+4 }, time.Minute, time.Millisecond)
		var urgent []*Stream
		for i := range 4 {
			u, err := submit(l, Request{Prompt: prompt(100, int32(i)), MaxTokens: 3, PromptTopN: -1, Priority: 1})
			require.NoError(t, err)
			urgent = append(urgent, u)
		}
		open(200)
		for _, u := range urgent {
			_, _, _, err = drain(t, u)
			require.NoError(t, err)
		}
		_, _, done, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, pooled(prompt(150, 5), by), done.Vector)
		for len(gate) > 0 {
			<-gate
		}
	}
	require.Positive(t, l.Stats().Preempted)
}

func TestChoicesBehindAPrompt(t *testing.T) {
	// Each choice costs a score row of 8 in a step; the fake's logprob is minus the tokens before.
	l, _ := start(t, Config{}, nil)
	var streams []*Stream
	for i := range 9 {
		s, err := submit(l, Request{Prompt: prompt(30+i, 2), PromptTopN: -1, Choices: []int32{5, 9, 6}})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		_, scores, done, err := drain(t, s)
		require.NoError(t, err)
		require.Empty(t, scores)
		lp := -float32(30 + i)
		require.Equal(t, []float32{lp, lp, lp}, done.Choices)
		require.Nil(t, done.Vector)
	}
}

func TestPooledRequestsAreChecked(t *testing.T) {
	l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxHiddenRows: 4}}, nil)
	for name, r := range map[string]Request{
		"tokens and a vector":  {Prompt: prompt(3, 1), MaxTokens: 1, PromptTopN: -1, Pool: PoolLast},
		"scores and choices":   {Prompt: prompt(3, 1), PromptTopN: 0, Choices: []int32{1}},
		"a vector and choices": {Prompt: prompt(3, 1), PromptTopN: -1, Pool: PoolMean, Choices: []int32{1}},
		"an unknown pooling":   {Prompt: prompt(3, 1), PromptTopN: -1, Pool: 9},
		"too many choices":     {Prompt: prompt(3, 1), PromptTopN: -1, Choices: prompt(9, 1)},
	} {
		_, err := submit(l, r)
		require.ErrorIs(t, err, engine.ErrInvalid, name)
	}
	without, _ := start(t, Config{}, nil)
	_, err := submit(without, pooling(3, 1, PoolLast))
	require.ErrorIs(t, err, engine.ErrUnsupported)
	require.ErrorContains(t, err, "hidden rows")
}

func TestHiddenRowsMustBeFinite(t *testing.T) {
	p := &pool{}
	require.NoError(t, p.add([]float32{1, 2}, 1))
	require.ErrorIs(t, p.add([]float32{1, float32(math.NaN())}, 1), ErrBadLogits)
	require.ErrorContains(t, p.add([]float32{1, 2, float32(math.Inf(1)), 0}, 2), "hidden row 2")
}

func TestOnlyTheSharedPartOfAPromptIsPublished(t *testing.T) {
	// The second request shares 64 tokens, of which the first published 48.
	var computed atomic.Int64
	l, _ := start(t, Config{}, func(f *fakeRunner) {
		f.watch = func(s *engine.Step) error {
			for _, seg := range s.Segments {
				computed.Add(int64(len(seg.Tokens)))
			}
			return nil
		}
	})
	for range 2 {
		s, err := submit(l, Request{Prompt: prompt(80, 7), PromptTopN: -1, Choices: []int32{1}, Shared: 50})
		require.NoError(t, err)
		_, _, _, err = drain(t, s)
		require.NoError(t, err)
	}
	require.EqualValues(t, 80+80-48, computed.Load())
}
