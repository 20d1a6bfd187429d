package batch

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestAThousandCancelsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &recorder{}
		rng := rand.New(rand.NewPCG(1, 9))
		cfg := Config{
			Observer: told, BlockBytes: 1, MaxWaiting: 2000,
			Runner: engine.RunnerConfig{KVBlocks: 100, MaxSequences: 8, HostBlocks: 20, MaxBatchedTokens: 128},
		}
		l, _ := start(t, cfg, ticking)
		var wg sync.WaitGroup
		for i := range int32(1000) {
			r := Request{Prompt: prompt(1+rng.IntN(100), i%40), MaxTokens: 400, PromptTopN: -1, Priority: i % 2}
			s, err := submit(l, r)
			require.NoError(t, err)
			after := time.Duration(rng.IntN(40_000)) * time.Microsecond
			wg.Go(func() {
				time.Sleep(after)
				s.Cancel()
				_, _, _, err := drain(t, s)
				require.ErrorIs(t, err, ErrCancelled)
			})
			time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
		}
		wg.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		stats := l.Stats()
		require.EqualValues(t, 1000, stats.Cancelled)
		require.Zero(t, stats.StepsAfterCancel)
		require.Equal(t, 100, stats.FreeBlocks)
		require.Equal(t, 20, stats.FreeHostBlocks)
		require.Len(t, told.freed, 1000)
		for _, steps := range told.freed {
			require.LessOrEqual(t, steps, depth)
		}
	})
}

// Ten times as many requests as fit: the accepted ones end well, the others are refused at once,
// and the loop is as before.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{MaxWaiting: 20, Runner: engine.RunnerConfig{MaxSequences: 4}}, ticking)
		lasts := func() time.Duration {
			begin := time.Now()
			run(t, l, Request{Prompt: prompt(40, 1), MaxTokens: 20, PromptTopN: -1, Bypass: true})
			return time.Since(begin)
		}
		lasts() // chunks find their length
		before, refused := lasts(), 0
		var wg sync.WaitGroup
		for i := range int32(1000) {
			r := Request{Prompt: prompt(40, i), MaxTokens: 20, PromptTopN: -1}
			s, err := submit(l, r)
			if err != nil {
				require.ErrorIs(t, err, ErrFull)
				refused++
			} else {
				wg.Go(func() {
					tokens, _, _, err := drain(t, s)
					require.NoError(t, err)
					require.Equal(t, want(r), tokens)
				})
			}
			require.LessOrEqual(t, l.Stats().Waiting, 20)
			time.Sleep(500 * time.Microsecond)
		}
		wg.Wait()
		require.Greater(t, refused, 500)
		require.Equal(t, before, lasts())
		synctest.Wait()
		require.Equal(t, 64, l.Stats().FreeBlocks)
	})
}

func TestStatsSayWhatWaitsAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := start(t, Config{Runner: engine.RunnerConfig{MaxSequences: 1}}, ticking)
		slow, err := submit(l, Request{Prompt: prompt(5, 1), MaxTokens: 100, PromptTopN: -1})
		require.NoError(t, err)
		time.Sleep(90 * time.Millisecond)
		require.Equal(t, 1, l.Stats().Paused, "nobody reads it")
		require.Zero(t, l.Stats().Stalled, "it may only be late")
		require.Zero(t, l.Stats().QueueAge)
		next, err := submit(l, Request{Prompt: prompt(50, 2), MaxTokens: 3, PromptTopN: -1})
		require.NoError(t, err)
		time.Sleep(100 * time.Millisecond)
		stats := l.Stats()
		require.Equal(t, 1, stats.Waiting)
		require.EqualValues(t, 50, stats.WaitingPrefillTokens)
		require.Equal(t, 100*time.Millisecond, stats.QueueAge)
		time.Sleep(250 * time.Millisecond)
		stats = l.Stats()
		require.Equal(t, 1, stats.Stalled, "it gave its place up, or is about to")
		_, _, _, err = drain(t, slow)
		require.NoError(t, err)
		_, _, _, err = drain(t, next)
		require.NoError(t, err)
		synctest.Wait()
		stats = l.Stats()
		require.Zero(t, stats.Paused)
		require.Zero(t, stats.Stalled)
		require.Zero(t, stats.QueueAge)
		require.Zero(t, stats.WaitingPrefillTokens)
		require.Equal(t, 6+3, stats.CachedBlocks, "of both")
	})
}

func TestTheObserverHearsWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &recorder{}
		l, _ := start(t, Config{Observer: told, Chunk: 32}, ticking)
		r := Request{Prompt: prompt(50, 1), MaxTokens: 4, PromptTopN: -1}
		time.Sleep(time.Second)
		run(t, l, r)
		run(t, l, r)
		synctest.Wait()
		require.Equal(t, []time.Duration{0, 0}, told.waited)
		require.Equal(t, []int{0, 48}, told.cached)
		require.Equal(t, 2+3+1+3, told.steps)
		require.Equal(t, told.steps, told.sequences)
		require.Equal(t, 50+2, told.prompt)
		require.Equal(t, 3+3, told.decode)
		require.Equal(t, []time.Duration{2 * time.Millisecond, time.Millisecond}, told.first)
		require.Len(t, told.next, 6)
		for _, gap := range told.next {
			require.Equal(t, time.Millisecond, gap)
		}
	})
}
