package batch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// crowd runs sequences that need more blocks than there are, and returns the loop after their end.
// Whether a loop swaps or recomputes depends on time, so call it in a synctest bubble, where steps
// last as long as the fake runner sets.
func crowd(t *testing.T, cfg Config, adjust func(*fakeRunner), bypass bool) *Loop {
	t.Helper()
	cfg.Runner.KVBlocks, cfg.Runner.MaxSequences = 20, 4
	l, f := start(t, cfg, adjust)
	var streams []*Stream
	var requests []Request
	for i := range int32(4) {
		requests = append(requests, Request{Prompt: prompt(60, i), MaxTokens: 100, PromptTopN: -1, Bypass: bypass})
		s, err := submit(l, requests[i])
		require.NoError(t, err)
		streams = append(streams, s)
	}
	lost := 0
	for i, s := range streams {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(requests[i]), tokens)
		lost += s.Timings().Preemptions
	}
	require.EqualValues(t, l.Stats().Preempted, lost, "each knows of its own")
	synctest.Wait()
	require.True(t, l.Idle())
	require.Equal(t, 20, l.Stats().FreeBlocks)
	require.Equal(t, cfg.Runner.HostBlocks, l.Stats().FreeHostBlocks)
	require.NoError(t, f.broken)
	return l
}

// slow makes prefill slow, so that swapping is faster.
func slow(f *fakeRunner) {
	f.lasts = func(s *engine.Step) time.Duration { return time.Microsecond * time.Duration(len(s.Segments)) }
}

func TestSwapAndRecomputeGiveTheSameTokens(t *testing.T) {
	// Preemption by swap and by recomputation give the same tokens.
	for name, tc := range map[string]struct {
		cfg     Config
		swapped bool
	}{
		"no host memory":                {Config{BlockBytes: 1}, false},
		"a free link":                   {Config{BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 64}}, true},
		"a link slower than the device": {Config{BlockBytes: 1 << 30, Runner: engine.RunnerConfig{HostBlocks: 64}}, false},
		"a link whose rate is told":     {Config{BlockBytes: 1 << 30, HostRate: 1e30, Runner: engine.RunnerConfig{HostBlocks: 64}}, true},
		"too little host memory":        {Config{BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 1}}, false},
	} {
		for _, bypass := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, bypass %v", name, bypass), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					told := &recorder{}
					tc.cfg.Observer = told
					l := crowd(t, tc.cfg, slow, bypass)
					stats := l.Stats()
					require.Positive(t, stats.Preempted)
					require.Equal(t, tc.swapped, stats.Swapped > 0, "%d of %d", stats.Swapped, stats.Preempted)
					require.EqualValues(t, stats.Swapped, told.preempted[Swap])
					require.EqualValues(t, stats.Preempted-stats.Swapped, told.preempted[Recompute])
				})
			})
		}
	}
}

func TestAHostWithoutMemoryMeansRecomputation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		l := crowd(t, Config{BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 64}}, func(f *fakeRunner) {
			slow(f)
			f.refuse = func(s *engine.Step) error {
				for _, op := range s.PreOps {
					if op.Kind == engine.BlockOut {
						refused++
						return fmt.Errorf("host memory: %w", engine.ErrOutOfMemory)
					}
				}
				return nil
			}
		}, true)
		require.Positive(t, refused)
		require.EqualValues(t, refused, l.Stats().RefusedSteps)
	})
}

func TestASwappedSequenceComputesNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fake *fakeRunner
		l := crowd(t, Config{BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 64}}, func(f *fakeRunner) { slow(f); fake = f }, true)
		require.Positive(t, l.Stats().Swapped)
		_, tokens := fake.computed()
		require.Equal(t, 4*(60+99), tokens)
	})
}
