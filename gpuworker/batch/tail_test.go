package batch

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// startChat is startStates for an engine whose prompts compute the bits of answers.
func startChat(t *testing.T, cfg Config) (*Loop, *fakeRunner) {
	t.Helper()
	cfg.States, cfg.OneClass = true, true
	return start(t, cfg, func(f *fakeRunner) { f.stateful, f.oneClass = true, true })
}

// answered is the beginning of the next turn of a chat: a prompt and its answer.
func answered(r Request) []int32 { return slices.Concat(r.Prompt, want(r)) }

func TestNextTurnComputesItsNewTokens(t *testing.T) {
	// A turn computes its own tokens, at most a block of the turn before, and nothing else.
	for _, answer := range []int{64, 65, 79, 80, 81, 92, 108, 300, 700} {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprintf("answer of %d, stop token %v", answer, stops), func(t *testing.T) {
				runner := engine.RunnerConfig{SavedStates: 8, KVBlocks: 200, BlockSize: 16}
				l, f := startChat(t, Config{Context: 3000, Runner: runner})
				first := Request{Prompt: prompt(100, 1), MaxTokens: answer + 50, PromptTopN: -1}
				tokens := want(first)
				for slices.Contains(tokens[:answer-1], tokens[answer-1]) {
					answer++ // the token before it would stop the answer
				}
				if tokens = tokens[:answer]; stops {
					first.StopIDs = tokens[answer-1:]
				} else {
					first.MaxTokens = answer
				}
				s, err := submit(l, first)
				require.NoError(t, err)
				got, _, _, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, tokens, got)
				require.Eventually(t, l.Idle, time.Minute, time.Millisecond) // its state is findable once it has left its slot
				_, before := f.computed()
				turn := slices.Concat(first.Prompt, tokens, prompt(60, 9))
				cached := runCached(t, l, Request{Prompt: turn, MaxTokens: 1, PromptTopN: -1})
				_, after := f.computed()
				known := 100 + answer - 1
				whole := []int{known / 16 * 16}
				if stops { // a step may have had the stop token as input before it was seen
					whole = append(whole, (known+1)/16*16)
				}
				require.Contains(t, whole, cached)
				require.Equal(t, len(turn)-cached, after-before)
				require.NoError(t, f.broken)
			})
		}
	}
}

func TestAnswersHaveNoTailInVain(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg    Config
		answer int
		change func(*Request)
		cached int // of the next turn
	}{
		"a tail":                       {Config{OneClass: true}, 100, nil, 192},
		"close to the prompt's state":  {Config{OneClass: true}, 60, nil, 96},
		"kernels with other bits":      {Config{}, 100, nil, 96},
		"prompts in the decode class":  {Config{}, 100, func(r *Request) { r.Class = engine.Decode }, 192},
		"an answer that is not shared": {Config{OneClass: true}, 100, func(r *Request) { r.Shared = 100 }, 96},
		"one state":                    {Config{OneClass: true, Runner: engine.RunnerConfig{SavedStates: 1}}, 100, nil, 96},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.States = true
			if tc.cfg.Runner.SavedStates == 0 {
				tc.cfg.Runner.SavedStates = 8
			}
			first := Request{Prompt: prompt(100, 1), MaxTokens: tc.answer, PromptTopN: -1}
			if tc.change != nil {
				tc.change(&first)
			}
			l, f := start(t, tc.cfg, func(f *fakeRunner) {
				f.stateful, f.oneClass = true, tc.cfg.OneClass
				f.prompts = func(engine.SlotParams) engine.KernelClass { return first.Class }
			})
			require.Zero(t, runCached(t, l, first))
			second := first
			second.Prompt, second.Shared, second.MaxTokens = append(answered(first), prompt(60, 9)...), 0, 1
			require.Equal(t, tc.cached, runCached(t, l, second))
			require.NoError(t, f.broken)
			require.Zero(t, l.tails)
			require.Equal(t, tc.cfg.Runner.SavedStates, l.cache.FreeStates())
		})
	}
}

func TestTailsLeaveStatesForPrompts(t *testing.T) {
	// Eight answers of which two may have a tail, and then a prompt that saves its state.
	l, f := startChat(t, Config{Runner: engine.RunnerConfig{SavedStates: 4, KVBlocks: 200, MaxSequences: 10}})
	var streams []*Stream
	for i := range int32(8) {
		s, err := submit(l, Request{Prompt: prompt(20, i), MaxTokens: 150, PromptTopN: -1})
		require.NoError(t, err)
		streams = append(streams, s)
	}
	long := Request{Prompt: prompt(200, 20), MaxTokens: 1, PromptTopN: -1}
	require.Zero(t, runCached(t, l, long))
	require.Equal(t, 192, runCached(t, l, long))
	for _, s := range streams {
		_, _, _, err := drain(t, s)
		require.NoError(t, err)
	}
	stop(l)
	require.NoError(t, f.broken)
	require.Equal(t, 4, l.cache.FreeStates())
}

func TestCancelledAnswersKeepTheirTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{States: true, OneClass: true, Runner: engine.RunnerConfig{SavedStates: 4}}, func(f *fakeRunner) {
			f.stateful, f.oneClass, f.gate = true, true, make(chan struct{}, 1000)
		})
		r := Request{Prompt: prompt(100, 1), MaxTokens: 150, PromptTopN: -1}
		s, err := submit(l, r)
		require.NoError(t, err)
		for range 115 {
			f.gate <- struct{}{}
			synctest.Wait()
			if s.full(0) { // its reader keeps up
				_, err = s.Recv(t.Context(), nil)
				require.NoError(t, err)
			}
		}
		s.Cancel()
		close(f.gate)
		synctest.Wait()
		require.True(t, l.Idle())
		cached := runCached(t, l, Request{Prompt: append(answered(r), prompt(60, 9)...), MaxTokens: 1, PromptTopN: -1})
		require.GreaterOrEqual(t, cached, 192)
		require.NoError(t, f.broken)
	})
}

func TestPreemptedAnswersGiveBackTheirTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{BlockBytes: 1, States: true, OneClass: true, Runner: engine.RunnerConfig{SavedStates: 20}}
		var fake *fakeRunner
		l := crowd(t, cfg, func(f *fakeRunner) {
			slow(f)
			f.stateful, f.oneClass, fake = true, true, f
		}, false)
		require.Positive(t, l.Stats().Preempted)
		require.Equal(t, 20, l.cache.FreeStates())
		require.NoError(t, fake.broken)
		require.Zero(t, l.tails)
	})
}
