package batch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/engine"
)

func TestLongRecallsTakeSeveralSteps(t *testing.T) {
	// A step has room for six copies, and the prefix needs twelve and more. The sequence computes a
	// block with each part of them.
	for _, name := range []string{"blocks", "states"} {
		t.Run(name, func(t *testing.T) {
			cfg := tierModels()[name]
			cfg.moves, cfg.Chunk = 16, 32
			if cfg.States {
				cfg.StateInterval, cfg.Runner.SavedStates, cfg.Tier.States, cfg.Runner.HostStates = 64, 4, 30, 30
			}
			l, f := startTier(t, cfg, nil)
			for seed := range int32(3) {
				require.Zero(t, runCached(t, l, ask(seed)))
			}
			for seed := range int32(3) {
				_, before := f.computed()
				cached := runCached(t, l, ask(seed))
				require.GreaterOrEqual(t, cached, 192-5*16, "prompt %d", seed) // less than 64 tokens are not copied
				require.LessOrEqual(t, cached, 192-16)
				_, after := f.computed()
				require.Equal(t, 200-cached+3, after-before, "the rest of the prompt, and three of four tokens")
			}
			stop(l)
			require.NoError(t, f.broken)
			require.EqualValues(t, 3, l.Stats().TierRecalls)
			require.EqualValues(t, 3, l.Stats().PrefixHits)
			require.Equal(t, l.Stats().TierTokens, l.Stats().CachedTokens)
			require.GreaterOrEqual(t, l.Stats().TierTokens, uint64(3*(192-5*16)))
		})
	}
}

func TestLongRecallsKeepTheirRest(t *testing.T) {
	// The tier is full. The blocks that a sequence needs while it recalls its prefix in parts
	// displace other content, but not the rest of the prefix.
	cfg := tiered(Config{BlockBytes: 1, Chunk: 32, moves: 16, Runner: engine.RunnerConfig{KVBlocks: 16}}, Tier{Blocks: 26})
	l, f := startTier(t, cfg, nil)
	for seed := range int32(3) {
		require.Zero(t, runCached(t, l, ask(seed)))
	}
	require.Equal(t, 192-16, runCached(t, l, ask(0)), "all but the block that is computed between two parts")
	stop(l)
	require.NoError(t, f.broken)
	require.Positive(t, l.Stats().TierEvictions)
}

func TestEqualPromptsShareTheirRecalls(t *testing.T) {
	// Two equal prompts recall their prefix in parts. Each reuses the blocks that the other copied to the device.
	cfg := tiered(Config{
		BlockBytes: 1, StateBytes: 1, States: true, StateInterval: 64, Chunk: 512, moves: 16, LeastRecall: 16,
		Runner: engine.RunnerConfig{KVBlocks: 40, SavedStates: 8},
	}, Tier{Blocks: 264, States: 60})
	l, f := startTier(t, cfg, slow)
	for seed := range int32(6) {
		require.Zero(t, runCached(t, l, ask(seed)))
	}
	_, before := f.computed()
	require.Equal(t, 160, runCached(t, l, ask(0)))
	_, alone := f.computed()
	for _, s := range arrive(l, nil, ask(1), ask(1)) {
		tokens, _, _, err := drain(t, s)
		require.NoError(t, err)
		require.Equal(t, want(ask(1)), tokens)
		require.Equal(t, 160, s.Cached())
	}
	_, both := f.computed()
	require.Equal(t, 2*(alone-before), both-alone)
	stop(l)
	require.NoError(t, f.broken)
}

func TestRecallsShareTheStateOfAPrompt(t *testing.T) {
	// The state before the last token of a prompt comes back, at once or in parts. The leader of
	// the group starts with it, and so do the others.
	for moves, cached := range map[int]int{0: 192, 16: 192 - 2*16} {
		t.Run(fmt.Sprintf("%d moves", moves), func(t *testing.T) {
			cfg := tiered(Config{
				BlockBytes: 1, StateBytes: 1, States: true, StateInterval: 64, Chunk: 512, moves: moves, LeastRecall: 16,
				Runner: engine.RunnerConfig{KVBlocks: 20, SavedStates: 8},
			}, Tier{Blocks: 264, States: 60})
			l, f := startTier(t, cfg, slow)
			group := func(seed int32) Request { return Request{Prompt: prompt(193, seed), MaxTokens: 4, PromptTopN: -1} }
			for seed := range int32(4) {
				require.Zero(t, runCached(t, l, group(seed)))
			}
			before := l.Stats().PrefixLookups
			_, tokens := f.computed()
			for k, s := range several(t, l, group(0), 4) {
				got, _, _, err := drain(t, s)
				require.NoError(t, err)
				require.Equal(t, wantOf(group(0), k), got)
				require.Equal(t, cached, s.Cached(), "continuation %d", k)
			}
			stop(l)
			require.NoError(t, f.broken)
			require.EqualValues(t, 1, l.Stats().PrefixLookups-before, "the leader's")
			_, after := f.computed()
			require.Equal(t, 192-cached+4*(1+3), after-tokens)
		})
	}
}

func TestMembersReportTheirLeadersHit(t *testing.T) {
	// No state of the prompt could be saved, and so a member recalls it in parts after its leader.
	// It reports the hit of the leader, and the counters have its own.
	cfg := tiered(Config{BlockBytes: 1, Chunk: 32, moves: 16, Runner: engine.RunnerConfig{KVBlocks: 16}}, Tier{Blocks: 64})
	l, f := startTier(t, cfg, nil)
	for seed := range int32(3) {
		require.Zero(t, runCached(t, l, ask(seed)))
	}
	group := &sequenceGroup{pending: 1, cached: 160, alone: true, started: true}
	s := arrive(l, func(s *sequence) { s.group = group }, ask(0))[0]
	_, _, _, err := drain(t, s)
	require.NoError(t, err)
	require.Equal(t, 160, s.Cached())
	stop(l)
	require.NoError(t, f.broken)
	require.EqualValues(t, 1, l.Stats().PrefixHits)
	require.EqualValues(t, 192-16, l.Stats().CachedTokens)
}

// outranker submits a request of higher priority when a sequence gets its slot.
type outranker struct {
	recorder
	submit func()
}

func (o *outranker) Admitted(time.Duration, int, int) {
	if submit := o.submit; submit != nil {
		o.submit = nil
		submit()
	}
}

func TestPreemptedRecallsStartAgain(t *testing.T) {
	// A sequence is preempted between two parts of its recall. Its blocks are not swapped, because
	// it recalls more than it had when it comes back.
	synctest.Test(t, func(t *testing.T) {
		cfg := tiered(Config{BlockBytes: 1, Chunk: 32, moves: 16, Runner: engine.RunnerConfig{KVBlocks: 16, MaxSequences: 1, HostBlocks: 32}}, Tier{Blocks: 64})
		hook := &outranker{recorder: recorder{preempted: map[Preemption]int{}}}
		cfg.Observer = hook
		l, f := startTier(t, cfg, slow)
		for seed := range int32(3) {
			require.Zero(t, runCached(t, l, ask(seed)))
		}
		_, before := f.computed()
		urgent := make(chan *Stream, 1)
		hook.submit = func() {
			s, err := submit(l, Request{Prompt: prompt(20, 9), MaxTokens: 1, PromptTopN: -1, Priority: 1})
			require.NoError(t, err)
			urgent <- s
		}
		runCached(t, l, ask(0))
		_, _, _, err := drain(t, <-urgent)
		require.NoError(t, err)
		stop(l)
		require.NoError(t, f.broken)
		require.EqualValues(t, 1, l.Stats().Preempted)
		require.Zero(t, l.Stats().Swapped)
		_, after := f.computed()
		require.Equal(t, 20+16+200-192+3, after-before, "a block between two parts, the end of the prompt and three tokens")
	})
}
