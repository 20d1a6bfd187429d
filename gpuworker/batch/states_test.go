package batch

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

// startStates is start for a model whose layers carry states.
func startStates(t *testing.T, cfg Config) (*Loop, *fakeRunner) {
	t.Helper()
	cfg.States = true
	return start(t, cfg, func(f *fakeRunner) { f.stateful = true })
}

// runCached submits a request, reads it to its end and returns how many of its tokens were cached.
func runCached(t *testing.T, l *Loop, r Request) int {
	t.Helper()
	s, err := submit(l, r)
	require.NoError(t, err)
	tokens, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, want(r), tokens)
	return s.Cached()
}

func TestPrefixHitsEndAtSavedStates(t *testing.T) {
	for name, tc := range map[string]struct {
		saved  int
		first  []int32
		second []int32
		cached int
	}{
		"the same prompt":                      {4, prompt(200, 1), prompt(200, 1), 192},
		"a prompt of whole blocks":             {4, prompt(192, 1), prompt(192, 1), 176},
		"the prompt continued":                 {4, prompt(200, 1), append(prompt(200, 1), prompt(50, 9)...), 192},
		"a shorter prompt, without a state":    {4, prompt(200, 1), prompt(150, 1), 0},
		"too short to save":                    {4, prompt(60, 1), prompt(60, 1), 0},
		"no saved states":                      {0, prompt(200, 1), prompt(200, 1), 0},
		"a prompt of as much as is worthwhile": {4, prompt(65, 1), prompt(65, 1), 64},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := startStates(t, Config{Runner: engine.RunnerConfig{SavedStates: tc.saved}})
			require.Zero(t, runCached(t, l, Request{Prompt: tc.first, MaxTokens: 4, PromptTopN: -1}))
			require.Equal(t, tc.cached, runCached(t, l, Request{Prompt: tc.second, MaxTokens: 4, PromptTopN: -1}))
			require.NoError(t, f.broken)
		})
	}
}

func TestKeysNameUsefulPrefixes(t *testing.T) {
	for name, tc := range map[string]struct {
		saved int
		want  []uint64
	}{"no saved states": {0, nil}, "a saved state": {2, []uint64{192, 199}}} {
		t.Run(name, func(t *testing.T) {
			l, _ := startStates(t, Config{Runner: engine.RunnerConfig{SavedStates: tc.saved}})
			r := Request{
				Prompt: prompt(200, 1), MaxTokens: 1, PromptTopN: -1,
				Keys: []PrefixKey{{Key: 64, Tokens: 64}, {Key: 192, Tokens: 192}, {Key: 199, Tokens: 199}},
			}
			require.Zero(t, runCached(t, l, r))
			stop(l)
			require.Equal(t, tc.want, l.cache.All())
		})
	}
}

func TestStatesAreSavedWherePromptsPart(t *testing.T) {
	// The first two share 150 tokens. The second computes all of its own, and saves the state where
	// the third starts.
	l, f := startStates(t, Config{Runner: engine.RunnerConfig{SavedStates: 8}})
	for i, cached := range []int{0, 0, 144, 144} {
		p := append(prompt(150, 1), prompt(90, int32(20+i))...)
		require.Equal(t, cached, runCached(t, l, Request{Prompt: p, MaxTokens: 3, PromptTopN: -1}), "prompt %d", i)
	}
	require.NoError(t, f.broken)
}

func TestStatesAreSavedByInterval(t *testing.T) {
	l, f := startStates(t, Config{StateInterval: 64, OneClass: true, Runner: engine.RunnerConfig{SavedStates: 8}})
	f.oneClass = true
	r := Request{Prompt: prompt(100, 1), MaxTokens: 120, PromptTopN: -1}
	require.Zero(t, runCached(t, l, r))
	// The second turn of a chat: the first one, its answer and a question.
	p := append(append(prompt(100, 1), want(r)...), prompt(30, 7)...)
	require.Equal(t, 192, runCached(t, l, Request{Prompt: p, MaxTokens: 3, PromptTopN: -1}))
	require.NoError(t, f.broken)
}

func TestMembersOfAGroupStartWithItsState(t *testing.T) {
	for _, n := range []int{1, 2, 17, 65, 120} {
		for _, saved := range []int{0, 1, 6} {
			for _, bypass := range []bool{false, true} {
				t.Run(fmt.Sprintf("prompt of %d, %d saved states, bypass %v", n, saved, bypass), func(t *testing.T) {
					l, f := startStates(t, Config{Runner: engine.RunnerConfig{SavedStates: saved}})
					r := Request{Prompt: prompt(n, 3), MaxTokens: 20, PromptTopN: -1, Bypass: bypass}
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
					if _, tokens := f.computed(); saved == 6 {
						require.Equal(t, n+6*19+5*min(1, n), tokens, "the prompt is computed once, and its last token by each member")
					}
				})
			}
		}
	}
}

// savedAt returns where a sequence alone saves its states.
func savedAt(t *testing.T, cfg Config, r Request) (at []int32) {
	t.Helper()
	l, f := startStates(t, cfg)
	f.watch = func(s *engine.Step) error {
		for _, g := range s.Segments {
			if g.StateTo > 0 {
				at = append(at, g.FirstPosition+int32(len(g.Tokens)))
			}
		}
		return nil
	}
	runCached(t, l, r)
	stop(l)
	return at
}

func TestStatesAreSavedByPosition(t *testing.T) {
	for name, tc := range map[string]struct {
		prompt, shared, chunk, generate int
		want                            []int32
	}{
		"in a part of several intervals":       {prompt: 1800, chunk: 4096, want: []int32{512, 1024, 1536, 1792}},
		"in parts":                             {prompt: 1800, chunk: 300, want: []int32{512, 1024, 1536, 1792}},
		"an interval close to the last block":  {prompt: 1041, chunk: 4096, want: []int32{512, 1040}},
		"that of a later part":                 {prompt: 1041, chunk: 1030, want: []int32{512, 1040}},
		"one that is far enough":               {prompt: 1100, chunk: 4096, want: []int32{512, 1024, 1088}},
		"of generated tokens":                  {prompt: 200, chunk: 4096, generate: 900, want: []int32{192, 512, 1024}},
		"only where others may share":          {prompt: 1100, shared: 900, chunk: 4096, generate: 600, want: []int32{512, 896}},
		"none where hardly anything is shared": {prompt: 1100, shared: 20, chunk: 4096, generate: 600},
	} {
		t.Run(name, func(t *testing.T) {
			runner := engine.RunnerConfig{SavedStates: 30, KVBlocks: 400, MaxBatchedTokens: 4096, BlockSize: 16}
			cfg := Config{Context: 5000, Chunk: tc.chunk, Runner: runner}
			r := Request{Prompt: prompt(tc.prompt, 1), Shared: tc.shared, MaxTokens: max(tc.generate, 1), PromptTopN: -1}
			require.Equal(t, tc.want, savedAt(t, cfg, r))
		})
	}
}

func TestUnsharedTextsDisplaceNoStates(t *testing.T) {
	l, _ := startStates(t, Config{StateInterval: 64, Runner: engine.RunnerConfig{SavedStates: 2}})
	r := Request{Prompt: prompt(200, 1), MaxTokens: 1, PromptTopN: -1}
	require.Zero(t, runCached(t, l, r))
	runCached(t, l, Request{Prompt: prompt(300, 2), Shared: 20, MaxTokens: 200, PromptTopN: -1})
	require.Equal(t, 192, runCached(t, l, r))
}

func TestStatesAreSavedOnce(t *testing.T) {
	l, f := startStates(t, Config{StateInterval: 64, Runner: engine.RunnerConfig{SavedStates: 8}})
	r := Request{Prompt: prompt(200, 1), MaxTokens: 1, PromptTopN: -1}
	require.Zero(t, runCached(t, l, r))
	saved := 0
	f.watch = func(s *engine.Step) error {
		for _, g := range s.Segments {
			if g.StateTo > 0 {
				saved++
			}
		}
		return nil
	}
	r.PromptTopN = 0 // its prompt is scored, so that it starts with no state
	s, err := submit(l, r)
	require.NoError(t, err)
	_, _, _, err = drain(t, s)
	require.NoError(t, err)
	stop(l)
	require.Zero(t, saved)
}

func TestGroupsWithoutAStateRunAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		prompt, saved, before int
		steps, prompts        int
	}{
		"the prompt is new":                   {200, 6, 0, 3, 1},
		"it ends at a state":                  {65, 6, 1, 3, 1},
		"it ends after one":                   {66, 6, 1, 3, 1},
		"no states":                           {200, 0, 0, 2, 6},
		"a state that another sequence holds": {200, 1, 1, 3, 6},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := startStates(t, Config{Chunk: 4096, Runner: engine.RunnerConfig{SavedStates: tc.saved, KVBlocks: 200, MaxSequences: 8, MaxBatchedTokens: 4096}})
			r := Request{Prompt: prompt(tc.prompt, 3), MaxTokens: 2, PromptTopN: -1}
			for range tc.before {
				require.Zero(t, runCached(t, l, r))
			}
			if tc.saved == 1 {
				_, held := l.cache.AllocState()
				require.True(t, held)
			}
			before, _ := f.computed()
			prompts := 0
			f.watch = func(s *engine.Step) error {
				for _, g := range s.Segments {
					if int(g.FirstPosition)+len(g.Tokens) >= tc.prompt-1 && int(g.FirstPosition) < tc.prompt-1 {
						prompts++
					}
				}
				return nil
			}
			for i, s := range several(t, l, r, 6) {
				tokens, _, _, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, wantOf(r, i), tokens)
			}
			stop(l)
			require.NoError(t, f.broken)
			after, _ := f.computed()
			require.LessOrEqual(t, after-before, tc.steps+1)
			require.LessOrEqual(t, prompts, tc.prompts)
		})
	}
}

func TestUnneededPromptStateIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f := start(t, Config{States: true, Runner: engine.RunnerConfig{SavedStates: 1}}, func(f *fakeRunner) {
			f.stateful, f.gate = true, make(chan struct{}, 1000)
		})
		streams := several(t, l, Request{Prompt: prompt(60, 3), MaxTokens: 100, PromptTopN: -1, Bypass: true}, 2)
		synctest.Wait()
		require.Zero(t, l.cache.FreeStates(), "the leader saves the state with which the other starts")
		streams[1].Cancel()
		for range 20 {
			f.gate <- struct{}{}
		}
		synctest.Wait()
		require.Equal(t, 1, l.cache.FreeStates())
		close(f.gate)
		tokens, _, _, err := drain(t, streams[0])
		require.NoError(t, err)
		require.Len(t, tokens, 100)
	})
}

func TestPreemptedSequencesKeepTheirStates(t *testing.T) {
	for name, cfg := range map[string]Config{
		"recomputed":                    {BlockBytes: 1},
		"recomputed from saved states":  {BlockBytes: 1, StateInterval: 16, Runner: engine.RunnerConfig{SavedStates: 20}},
		"swapped":                       {BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 64, HostStates: 4}},
		"no host memory for states":     {BlockBytes: 1, Runner: engine.RunnerConfig{HostBlocks: 64}},
		"states too large to swap":      {BlockBytes: 1, StateBytes: 1 << 40, Runner: engine.RunnerConfig{HostBlocks: 64, HostStates: 4}},
		"swapped, and saved states too": {BlockBytes: 1, StateInterval: 16, Runner: engine.RunnerConfig{HostBlocks: 64, HostStates: 4, SavedStates: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg.States = true
				l := crowd(t, cfg, func(f *fakeRunner) {
					slow(f)
					f.stateful = true
				}, false)
				require.Positive(t, l.Stats().Preempted)
				require.Equal(t, cfg.Runner.HostStates > 0 && cfg.StateBytes == 0, l.Stats().Swapped > 0)
				require.Equal(t, cfg.Runner.SavedStates, l.cache.FreeStates())
			})
		})
	}
}
