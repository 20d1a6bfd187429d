package batch

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// startWindow is start for a model with a window group.
func startWindow(t *testing.T, cfg Config) (*Loop, *fakeRunner) {
	t.Helper()
	return start(t, cfg, func(f *fakeRunner) { f.window, f.oneClass = cfg.Window, cfg.OneClass })
}

func TestWindowBlocksAreFreed(t *testing.T) {
	// A sequence of 400 positions holds no more of the window group than a window and its chunks.
	for _, chunk := range []int{0, 1, 16, 64} {
		t.Run(fmt.Sprint("chunks of ", chunk), func(t *testing.T) {
			most := leastWindow(40, 16)
			l, f := startWindow(t, Config{Window: 40, Chunk: chunk, Runner: engine.RunnerConfig{WindowBlocks: most}})
			require.Zero(t, runCached(t, l, Request{Prompt: prompt(300, 1), MaxTokens: 100, PromptTopN: -1, Bypass: true}))
			require.NoError(t, f.broken)
			require.Zero(t, l.Stats().Preempted)
		})
	}
}

func TestASmallWindowGroupLimitsSequences(t *testing.T) {
	// Below the least for a window that moves, sequences are as long as the group.
	l, _ := startWindow(t, Config{Window: 40, Runner: engine.RunnerConfig{WindowBlocks: leastWindow(40, 16) - 1}})
	_, err := l.Submit(Request{Prompt: prompt(65, 1), PromptTopN: -1, Continuations: []Continuation{{}}})
	require.ErrorIs(t, err, ErrTooLong)
	require.Zero(t, runCached(t, l, Request{Prompt: prompt(50, 1), MaxTokens: 14, PromptTopN: -1}))
}

func TestPrefixHitsNeedWindowBlocks(t *testing.T) {
	ask := func(p []int32, n int) Request { return Request{Prompt: p, MaxTokens: n, PromptTopN: -1} }
	for name, tc := range map[string]struct {
		blocks  int // of the window group
		prompts [][]int32
		cached  []int
	}{
		"the same prompt":               {9, [][]int32{prompt(200, 1), prompt(200, 1)}, []int{0, 192}},
		"a prompt of whole blocks":      {9, [][]int32{prompt(192, 1), prompt(192, 1)}, []int{0, 176}},
		"the prompt continued":          {9, [][]int32{prompt(200, 1), append(prompt(200, 1), prompt(60, 9)...)}, []int{0, 192}},
		"a shorter prompt, with room":   {30, [][]int32{prompt(200, 1), prompt(150, 1)}, []int{0, 144}},
		"a shorter one, without room":   {5, [][]int32{prompt(200, 1), prompt(150, 1)}, []int{0, 0}},
		"the third one that parts":      {9, [][]int32{parted(1), parted(2), parted(3), parted(4)}, []int{0, 0, 144, 144}},
		"after others took all of them": {9, [][]int32{prompt(200, 1), prompt(200, 2), prompt(200, 3), prompt(200, 1)}, []int{0, 0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := startWindow(t, Config{Window: 40, Runner: engine.RunnerConfig{WindowBlocks: tc.blocks}})
			for i, p := range tc.prompts {
				require.Equal(t, tc.cached[i], runCached(t, l, ask(p, 4)), "prompt %d", i)
			}
			require.NoError(t, f.broken)
		})
	}
}

// parted returns prompts that part after 150 tokens.
func parted(by int32) []int32 { return append(prompt(150, 1), prompt(90, 20+by)...) }

func TestStartBlocksFollowAFullWindowGroup(t *testing.T) {
	// A sequence of any length starts with 4 window blocks, and one more is free for the others.
	l, _ := startWindow(t, Config{Window: 40, Runner: engine.RunnerConfig{WindowBlocks: 9}})
	for windows, want := range map[int]int{9: 60, 5: 60, 4: 3, 1: 0, 0: 0} {
		require.Equal(t, want, l.startBlocks(60, windows), "%d free window blocks", windows)
	}
	require.Equal(t, 2, l.startBlocks(2, 4))
	require.Equal(t, l.Stats().TotalBlocks, l.Stats().StartBlocks)
	require.Zero(t, l.Stats().HeldBlocks())
	plain, _ := start(t, Config{}, nil)
	require.Equal(t, 60, plain.startBlocks(60, 0))
}

func TestAPromptsEndOutlivesALongAnswer(t *testing.T) {
	// The kernels of prompts do not read what those of answers computed, so that the next turn of a
	// conversation starts where the prompt ended.
	l, f := startWindow(t, Config{Window: 40, Runner: engine.RunnerConfig{WindowBlocks: 12}})
	r := Request{Prompt: prompt(200, 1), MaxTokens: 150, PromptTopN: -1}
	require.Zero(t, runCached(t, l, r))
	turn := append(append(prompt(200, 1), want(r)...), prompt(30, 7)...)
	require.Equal(t, 192, runCached(t, l, Request{Prompt: turn, MaxTokens: 2, PromptTopN: -1}))
	require.NoError(t, f.broken)
}

func TestSwapMovesBothGroups(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		for name, tc := range map[string]struct {
			host    int
			swapped bool
		}{"host memory for both": {64, true}, "host memory for one": {0, false}} {
			t.Run(fmt.Sprintf("%s, bypass %v", name, bypass), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cfg := Config{BlockBytes: 1, Window: 40, Runner: engine.RunnerConfig{HostBlocks: 64, WindowBlocks: 64, HostWindowBlocks: tc.host}}
					var fake *fakeRunner
					l := crowd(t, cfg, func(f *fakeRunner) {
						slow(f)
						f.window, fake = 40, f
					}, bypass)
					stats := l.Stats()
					require.Positive(t, stats.Preempted)
					require.Equal(t, tc.swapped, stats.Swapped > 0)
					require.Equal(t, 64, stats.FreeWindowBlocks)
					require.Equal(t, tc.host, stats.FreeHostWindowBlocks)
					if _, tokens := fake.computed(); tc.swapped && bypass {
						require.Equal(t, 4*(60+99), tokens, "nothing is computed twice")
					}
				})
			})
		}
	}
}

func TestAWindowGroupThatIsFullPreempts(t *testing.T) {
	// Four sequences that need 4 blocks each share 9.
	l, f := startWindow(t, Config{Window: 40, Runner: engine.RunnerConfig{WindowBlocks: 9}})
	var streams []*Stream
	var requests []Request
	for i := range int32(4) {
		requests = append(requests, Request{Prompt: prompt(20, i), MaxTokens: 100, PromptTopN: -1})
		s, err := submit(l, requests[i])
		require.NoError(t, err)
		streams = append(streams, s)
	}
	for i, s := range streams {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(requests[i]), tokens)
	}
	require.NoError(t, f.broken)
	require.Positive(t, l.Stats().Preempted)
}

func TestMembersOfAGroupShareItsWindow(t *testing.T) {
	for _, n := range []int{1, 2, 16, 17, 65, 120} {
		for _, bypass := range []bool{false, true} {
			t.Run(fmt.Sprintf("prompt of %d, bypass %v", n, bypass), func(t *testing.T) {
				l, f := startWindow(t, Config{Window: 20, Runner: engine.RunnerConfig{WindowBlocks: 30}})
				r := Request{Prompt: prompt(n, 3), MaxTokens: 50, PromptTopN: -1, Bypass: bypass}
				for i := range int32(6) {
					r.Continuations = append(r.Continuations, Continuation{OutputIndex: i})
				}
				streams, err := l.Submit(r)
				require.NoError(t, err)
				for i, s := range streams {
					tokens, _, _, err := drain(t, s)
					require.NoError(t, err)
					require.Equal(t, wantOf(r, i), tokens)
				}
				require.NoError(t, f.broken)
				if _, tokens := f.computed(); l.Stats().Preempted == 0 {
					require.Equal(t, n+6*49+5*min(1, n), tokens, "the prompt is computed once, and its last token by each member")
				}
			})
		}
	}
}
